"""The heading of every profile: its method, and the model that was measured."""

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
    """Facts about a measurement of ``method`` on ``model``, over ``samples`` prompts.

    ``budget`` is the amount that it was measured at; empty if the result does not depend on it.
    ``weights`` is a digest of the model's weights; empty if unknown.
    """

    method: str
    model: str
    layers: int
    samples: int
    budget: str
    schema: str = SCHEMA
    weights: str = ""

    def check_layers(self, depth: int) -> None:
        """Raise ProfileMismatch unless it was measured with ``depth`` compressed layers."""
        if self.layers != depth:
            raise self.mismatch(
                f"is of {self.model!r} with {self.layers} layers, and {depth} layers are to be "
                "compressed"
            )

    def check_model(self, model: str) -> None:
        """Raise ProfileMismatch unless it was measured on the model of that name."""
        if self.model != model:
            raise self.mismatch(f"is of the model {self.model!r}, not of {model!r}")

    def check_weights(self, weights: str) -> None:
        """Raise ProfileMismatch if both digests are known and differ.

        Fine-tuning changes a model's weights, but not always its name.
        """
        if self.weights and weights and self.weights != weights:
            raise self.mismatch(
                f"was measured on other weights of {self.model!r} than these (their digest is "
                f"{weights}, not {self.weights})"
            )

    def check_budget(self, budget: str) -> None:
        """Raise ProfileMismatch unless it was measured at that budget."""
        if self.budget != budget:
            raise self.mismatch(f"was made at the budget {self.budget}, not {budget}")

    def mismatch(self, how: str) -> ProfileMismatch:
        """Return an error with the reason and the remedy."""
        return ProfileMismatch(f"this {self.method} profile {how}. {self.remedy}")

    @property
    def remedy(self) -> str:
        """Remedy for a profile that does not fit."""
        instruction = instruction_for(self.method)
        parameters = METHODS[self.method].parameters if self.method in METHODS else {}
        parameter = parameters.get("profile")
        required = parameter is not None and parameter.default is parameter.empty
        return f"{instruction}." if required else f"{instruction}, or leave profile out."


Read = TypeVar("Read", bound=Heading)


def load_as(path: str, method: str, read: Callable[[Path, int], Read]) -> Read:
    """Load a profile by ``read(path, modification time)``, and check its method.

    Raises:
        InvalidInput: the file does not exist, or is no profile of this version.
        ProfileMismatch: the profile is of another method.
    """
    file = Path(path).absolute()
    if not file.exists():
        raise InvalidInput(f"the profile {str(file)!r} does not exist. {instruction_for(method)}.")
    try:
        profile = read(file, file.stat().st_mtime_ns if file.is_file() else 0)
    except (InvalidInput, OSError) as error:
        raise InvalidInput(f"{error} {instruction_for(method)}.") from error
    if profile.method != method:
        raise ProfileMismatch(
            f"{path} is a profile of {profile.method}, not of {method}. {instruction_for(method)}."
        )
    return profile
