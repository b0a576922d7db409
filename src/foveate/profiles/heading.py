"""What every profile says of itself, whatever it holds: its method, and what it was measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from foveate.errors import InvalidInput, ProfileMismatch
from foveate.policies.heads import instruction_for
from foveate.policies.method import METHODS

SCHEMA = "foveate-profile-1"


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
            raise self.mismatch(
                f"is of {self.model!r} with {self.layers} layers, and {depth} layers are to be "
                "compressed"
            )

    def check_model(self, model: str) -> None:
        """Raises ProfileMismatch unless it was made for the model of that name."""
        if self.model != model:
            raise self.mismatch(f"is of the model {self.model!r}, not of {model!r}")

    def check_weights(self, weights: str) -> None:
        """Raises ProfileMismatch where both are known and differ: a model of the same name that was
        trained on is another one.
        """
        if self.weights and weights and self.weights != weights:
            raise self.mismatch(
                f"was measured on other weights of {self.model!r} than these (their digest is "
                f"{weights}, not {self.weights})"
            )

    def check_budget(self, budget: str) -> None:
        """Raises ProfileMismatch unless it was made at that budget."""
        if self.budget != budget:
            raise self.mismatch(f"was made at the budget {self.budget}, not {budget}")

    def mismatch(self, how: str) -> ProfileMismatch:
        """The error that says how it does not fit, and what to do."""
        return ProfileMismatch(f"this {self.method} profile {how}. {self.way_out}")

    @property
    def way_out(self) -> str:
        """What to do about one that does not fit."""
        made = instruction_for(self.method)
        parameters = METHODS[self.method].parameters if self.method in METHODS else {}
        taken = parameters.get("profile")
        needed = taken is not None and taken.default is taken.empty
        return f"{made}." if needed else f"{made}, or leave profile out."


Read = TypeVar("Read", bound=Heading)


def load_as(path: str, method: str, read: Callable[[Path, int], Read]) -> Read:
    """Return the profile in a file, as ``read`` from it and from when it was written last.

    Raises:
        InvalidInput: no such file, or no profile of this version.
        ProfileMismatch: a profile of another method.
    """
    place = Path(path).absolute()
    if not place.exists():
        raise InvalidInput(f"the profile {str(place)!r} does not exist. {instruction_for(method)}.")
    try:
        profile = read(place, place.stat().st_mtime_ns if place.is_file() else 0)
    except (InvalidInput, OSError) as error:
        raise InvalidInput(f"{error} {instruction_for(method)}.") from error
    if profile.method != method:
        raise ProfileMismatch(
            f"{path} is a profile of {profile.method}, not of {method}. {instruction_for(method)}."
        )
    return profile
