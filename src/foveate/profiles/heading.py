"""What every profile says of itself, whatever it holds: its method, and what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foveate.errors import InvalidInput, ProfileMismatch
from foveate.policies.making import made_by
from foveate.policies.method import METHODS

SCHEMA = "foveate-profile-1"


def check_there(path: Path, method: str) -> None:
    """Raises InvalidInput, which says how a profile is made, where there is no such file."""
    if not path.exists():
        raise InvalidInput(f"the profile {str(path)!r} does not exist. {made_by(method)}.")


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What was measured for ``method`` on ``model``, over ``samples`` prompts.

    ``budget`` is the amount that it was measured at; empty where it does not depend on it.
    ``weights`` are a digest of the model's; empty where they are not known.
    """

    method: str
    model: str
    layers: int
    samples: int
    budget: str
    schema: str = SCHEMA
    weights: str = ""

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

    def check_weights(self, weights: str) -> None:
        """Raises ProfileMismatch where both are known and differ: a model of the same name that was
        trained on is another one.
        """
        if self.weights and weights and self.weights != weights:
            raise ProfileMismatch(
                f"this {self.method} profile was measured on other weights of {self.model!r} than "
                f"these (their digest is {weights}, not {self.weights}). {self.way_out}"
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
