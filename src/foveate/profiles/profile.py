"""Profiles of numbers: measurements of a method on a model, in a small JSON file.

The method decides which numbers a profile has: one per layer, or one per layer and KV head. A
method that can be calibrated registers a function that reads them off one run
(:func:`calibration`); a profile is their mean over several runs. Profiles of tensors are in
:mod:`foveate.profiles.tensor_profile`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.data import files
from foveate.data.texts import read_json
from foveate.errors import InvalidInput, InvalidParameter, suggest
from foveate.policies.gathering import GATHERINGS
from foveate.policies.parameters import Range, short_repr
from foveate.policies.policy import Policy
from foveate.policies.registry import Registry
from foveate.profiles.heading import SCHEMA, Heading, load_as

Numbers = list[float] | list[list[float]]
NUMBERS = Range(0, 1_000_000)
"""Range of shares, redundancies and scores: none of them is negative."""


class Run(NamedTuple):
    """One compressed prompt: per layer the pairs kept and the notes, and the rows' lengths."""

    kept: Sequence[Int[Tensor, "b h"]]
    lengths: Int[Tensor, "b"]
    notes: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Profile(Heading):
    """Numbers of ``method`` on ``model``, by layer: the mean over ``samples`` prompts."""

    by_layer: Any

    def save(self, path: str | Path) -> Path:
        """Write the file.

        Raises:
            CannotWrite: an existing file is unchanged then.
        """
        path = Path(path)
        files.write(path, json.dumps(asdict(self), indent=1) + "\n")
        _read.cache_clear()
        return path

    def check_heads(self, layer: Layer) -> None:
        """Raise ProfileMismatch unless it has a number for each of the layer's KV heads."""
        self.check_row(layer.ordinal, layer.k.shape[1], layer.number)

    def check_row(self, ordinal: int, heads: int, number: int) -> None:
        """Raise ProfileMismatch unless it has ``heads`` numbers for the layer ``ordinal``.

        ``number`` is the layer's number in messages.
        """
        row = self.by_layer[ordinal]
        count = len(row) if isinstance(row, list) else 1
        if not isinstance(row, list) or count != heads:
            raise self.mismatch(
                f"of {self.model!r} has {count} numbers for layer {number}, which has {heads} KV "
                "heads"
            )


def load(path: str, method: str) -> Profile:
    """Read a profile; a file that has not changed is read once.

    Raises:
        InvalidInput: the file does not exist, or is no profile of this version.
        ProfileMismatch: the profile is of another method.
    """
    return load_as(path, method, _read)


def method_of(path: str) -> str | None:
    """Return the method of a profile; None if the file is no profile, which loading reports."""
    file = Path(path).absolute()
    try:
        return _read(file, file.stat().st_mtime_ns).method
    except (InvalidInput, OSError):
        return None


@lru_cache(maxsize=32)
def _read(path: Path, stamp: int) -> Profile:
    """Read a file whose modification time is ``stamp``, which only keys the cache."""
    try:
        record = read_json(path)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is not a profile: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        version = record.get("schema") if isinstance(record, dict) else None
        raise InvalidInput(
            f"{path} has the profile schema {short_repr(version)}, expected {SCHEMA!r}."
        )
    _check_fields(path, record)
    try:
        profile = Profile(**record)
    except TypeError as error:
        raise InvalidInput(f"{path} is not a profile: {error}.") from error
    if len(profile.by_layer) != profile.layers:
        raise InvalidInput(
            f"{path} says {short_repr(profile.layers)} layers and lists {len(profile.by_layer)}."
        )
    return profile


def _check_fields(path: Path, record: Mapping[str, Any]) -> None:
    """Raise InvalidInput, with the name of the field, if one has an invalid value."""
    for name, expected in get_type_hints(Profile).items():
        if expected in (int, str) and name in record and type(record[name]) is not expected:
            what = "whole number" if expected is int else "text"
            raise InvalidInput(
                f"{path} is not a profile: its {name} is no {what}, but {short_repr(record[name])}."
            )
    if "by_layer" in record and not _is_table(record["by_layer"]):
        raise InvalidInput(
            f"{path} is not a profile: its by_layer is no list of numbers from {NUMBERS.low} to "
            f"{NUMBERS.high}, or of as many numbers for every layer."
        )


def _is_table(value: Any) -> bool:
    """Return True for a list of valid numbers, or of equally long lists of them."""
    if not isinstance(value, list) or not value:
        return False
    lists = [row if isinstance(row, list) else [row] for row in value]
    alike = len({(isinstance(a, list), len(b)) for a, b in zip(value, lists, strict=True)}) == 1
    return (
        alike
        and bool(lists[0])
        and all(type(x) in (int, float) and x in NUMBERS for row in lists for x in row)
    )


Reading = Callable[[Run], Numbers]


class Calibration(NamedTuple):
    """A function that reads a method's numbers off one run; they may depend on the budget."""

    read: Reading
    at_a_budget: bool


CALIBRATIONS: Registry[Calibration] = Registry()


def calibration(name: str, *, at_a_budget: bool = False) -> Callable[[Reading], Reading]:
    """Register the function that reads a method's numbers off one run."""

    def register(read: Reading) -> Reading:
        CALIBRATIONS[name] = Calibration(read, at_a_budget)
        return read

    return register


def calibrated_method(policy: Policy) -> str:
    """Return the method of a policy that can be calibrated.

    Raises:
        InvalidParameter: none of its methods can be calibrated, or more than one can.
    """
    names = policy.origin.build.names if policy.origin else ()
    known = {*CALIBRATIONS, *GATHERINGS}
    known_names = [name for name in names if name in known]
    if not known_names:
        raise InvalidParameter(
            f"{policy.name} has nothing to calibrate. {suggest(policy.name, known)}"
        )
    if len(known_names) > 1:
        raise InvalidParameter(
            f"{policy.name} has more than one method to calibrate: {' and '.join(known_names)}. "
            "Calibrate them one at a time."
        )
    return str(known_names[0])


def mean(samples: Sequence[Numbers]) -> Numbers:
    """Return the mean of several runs' numbers."""
    stacked = torch.tensor(samples, dtype=torch.float64, device="cpu")
    averaged: Numbers = stacked.mean(0).tolist()
    return averaged
