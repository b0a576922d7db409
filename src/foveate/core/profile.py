"""Profiles: what a method measured on a model beforehand, in a small JSON file.

Which numbers a profile holds is up to its method: one per layer, or one per layer and KV head. A
method that can be calibrated registers a function that reads them off one run
(:func:`calibration`); a profile is their mean over several runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.core.errors import InvalidInput, InvalidParameter, ProfileMismatch, suggest

SCHEMA = "foveate-profile-1"
Numbers = list[float] | list[list[float]]


class Run(NamedTuple):
    """One prompt compressed: per layer the pairs kept and the notes, and the rows' lengths."""

    kept: Sequence[Int[Tensor, "b h"]]
    lengths: Int[Tensor, "b"]
    notes: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``by_layer`` numbers of ``method`` on ``model``, the mean over ``samples`` prompts.

    ``budget`` is the amount that they were measured at; empty where they do not depend on it.
    """

    method: str
    model: str
    layers: int
    samples: int
    budget: str
    by_layer: Any
    schema: str = SCHEMA

    def save(self, path: str | Path) -> Path:
        """Writes the file."""
        path = Path(path)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        load.cache_clear()
        return path

    def check_layers(self, depth: int) -> None:
        """Raises ProfileMismatch unless it was made for that many compressed layers."""
        if self.layers != depth:
            raise ProfileMismatch(
                f"this {self.method} profile is of {self.model!r} with {self.layers} layers, and "
                f"{depth} layers are to be compressed. {self._way_out()}"
            )

    def check_model(self, model: str) -> None:
        """Raises ProfileMismatch unless it was made for the model of that name."""
        if self.model != model:
            raise ProfileMismatch(
                f"this {self.method} profile is of the model {self.model!r}, not of {model!r}. "
                f"{self._way_out()}"
            )

    def check_budget(self, budget: str) -> None:
        """Raises ProfileMismatch unless it was made at that budget."""
        if self.budget != budget:
            raise ProfileMismatch(
                f"this {self.method} profile was made at the budget {self.budget}, not "
                f"{budget}. {self._way_out()}"
            )

    def _way_out(self) -> str:
        return f"Make one with 'foveate calibrate {self.method}', or leave profile out."


@lru_cache(maxsize=32)
def load(path: str, method: str) -> Profile:
    """Reads a profile.

    Raises:
        InvalidInput: no such file, or no profile of this version.
        ProfileMismatch: a profile of another method.
    """
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"{path} is not a profile: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        version = found.get("schema") if isinstance(found, dict) else None
        raise InvalidInput(
            f"{path} has the profile schema {version!r}, expected {SCHEMA!r}. Make it again with "
            f"'foveate calibrate {method}'."
        )
    try:
        profile = Profile(**found)
    except TypeError as error:
        raise InvalidInput(f"{path} is not a profile: {error}") from error
    if profile.method != method:
        raise ProfileMismatch(f"{path} is a profile of {profile.method}, not of {method}.")
    if len(profile.by_layer) != profile.layers:
        raise InvalidInput(
            f"{path} says {profile.layers} layers and lists {len(profile.by_layer)}."
        )
    return profile


Reading = Callable[[Run], Numbers]


class Calibration(NamedTuple):
    """How a method's numbers are read off one run, and whether they depend on the budget."""

    read: Reading
    at_a_budget: bool


CALIBRATIONS: dict[str, Calibration] = {}


def calibration(name: str, *, at_a_budget: bool = False) -> Callable[[Reading], Reading]:
    """Registers the function that reads a method's numbers off one run."""

    def register(read: Reading) -> Reading:
        CALIBRATIONS[name] = Calibration(read, at_a_budget)
        return read

    return register


def calibration_of(name: str) -> Calibration:
    """How the method of that name is calibrated.

    Raises:
        InvalidParameter: it has nothing to calibrate.
    """
    if name not in CALIBRATIONS:
        raise InvalidParameter(f"{name} has nothing to calibrate. {suggest(name, CALIBRATIONS)}")
    return CALIBRATIONS[name]


def mean(samples: Sequence[Numbers]) -> Numbers:
    """The mean of several runs' numbers."""
    stacked = torch.tensor(samples, dtype=torch.float64)
    averaged: Numbers = stacked.mean(0).tolist()
    return averaged
