"""What every profile says of itself, whatever it holds: its method, and what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass

from foveate.core.head_scores import HEAD_FILES
from foveate.core.heads import HEAD_READINGS
from foveate.core.method import METHODS
from foveate.errors import ProfileMismatch

SCHEMA = "foveate-profile-1"


def made_by(method: str) -> str:
    """How a profile of that method is made."""
    trained = method in HEAD_FILES and method not in HEAD_READINGS and HEAD_FILES[method].only
    if trained:  # only its file is read here
        return f"Make one with foveate.import_head_scores(model, '{method}', FILE)"
    return f"Make one with 'foveate calibrate {method}'"


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What was measured for ``method`` on ``model``, over ``samples`` prompts.

    ``budget`` is the amount that it was measured at; empty where it does not depend on it.
    """

    method: str
    model: str
    layers: int
    samples: int
    budget: str
    schema: str = SCHEMA

    def check_layers(self, depth: int) -> None:
        """Raises ProfileMismatch unless it was made for that many compressed layers."""
        if self.layers != depth:
            raise ProfileMismatch(
                f"this {self.method} profile is of {self.model!r} with {self.layers} layers, and "
                f"{depth} layers are to be compressed. {self.way_out}"
            )

    def check_model(self, model: str) -> None:
        """Raises ProfileMismatch unless it was made for the model of that name."""
        if self.model != model:
            raise ProfileMismatch(
                f"this {self.method} profile is of the model {self.model!r}, not of {model!r}. "
                f"{self.way_out}"
            )

    def check_budget(self, budget: str) -> None:
        """Raises ProfileMismatch unless it was made at that budget."""
        if self.budget != budget:
            raise ProfileMismatch(
                f"this {self.method} profile was made at the budget {self.budget}, not "
                f"{budget}. {self.way_out}"
            )

    @property
    def way_out(self) -> str:
        """What to do about one that does not fit."""
        made = made_by(self.method)
        parameters = METHODS[self.method].parameters if self.method in METHODS else {}
        taken = parameters.get("profile")
        needed = taken is not None and taken.default is taken.empty
        return f"{made}." if needed else f"{made}, or leave profile out."
