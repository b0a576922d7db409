"""Merging of folders that several people, machines or parts of a plan wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files
from foveate.errors import InvalidInput
from foveate_lab.eval.bundle import Bundle, read_bundle
from foveate_lab.eval.keyed_rows import HeldRows, Key, key_of
from foveate_lab.eval.results import CONFIGURATION, UNSAID
from foveate_lab.report.merging import answers_differ, same_question
from foveate_lab.reproduce.models import Place
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.perform import planned
from foveate_lab.reproduce.running.progress import Done
from foveate_lab.reproduce.task_request import drawn, note_drawn

VERSIONS = ("foveate", "torch", "transformers")
"""Packages whose versions must agree on all machines. Local labels such as +cu126 may differ."""


class Merged(NamedTuple):
    """Merged rows by model, profiles by file, and digests of the data."""

    rows: dict[Place, list[dict[str, Any]]]
    profiles: dict[Path, bytes]
    drawn: dict[str, str]


def merge(lab: Lab, folders: Sequence[Path]) -> None:
    """Add the rows and profiles that other labs wrote, once all of them are known to fit.

    An answer replaces a refusal. Of two answers, which have to be equal, and of two timings the
    first stays: that of the lab's own folder, then those of the folders in their order.

    Raises:
        InvalidInput: a folder is not as its manifest says; it is of another model, other weights,
            settings, versions or data, or has other answers or profiles, which the message names;
            or none of its rows is of these experiments' models.
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    locations = list(planned(lab, Done()))
    merged = Merged(
        {location: list(lab.rows.of(location).rows) for location in locations}, {}, drawn(lab.out)
    )
    for folder in folders:
        mine = [
            location
            for location in locations
            if (folder / "rows" / location.folder / CONFIGURATION).exists()
        ]
        names = [location.at for location in locations]
        if not mine:
            raise InvalidInput(
                f"{str(folder)!r} holds no rows of {', '.join(names)}. Give a "
                "folder that 'foveate reproduce --out' wrote of these experiments, with the same "
                "--model."
            )
        _check_data(folder, merged)
        for location in mine:
            _add(lab, location, folder, merged)
    for path, content in merged.profiles.items():
        with files.reporting(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)
    for location, rows in merged.rows.items():
        lab.rows.take(location, rows)
    note_drawn(lab.out, merged.drawn)


def _check_data(folder: Path, merged: Merged) -> None:
    """Raise InvalidInput unless a folder has the same samples as the others, also those that it did
    not run: the parts of a plan have none in common.
    """
    theirs = drawn(folder)
    for name in theirs.keys() & merged.drawn.keys():
        if theirs[name] != merged.drawn[name]:
            raise InvalidInput(
                f"{str(folder)!r} cannot be merged: its data of {name} samples differ (digest "
                f"{theirs[name]}, not {merged.drawn[name]}). Give all machines the same data."
            )
    merged.drawn.update(theirs)


def _add(lab: Lab, location: Place, folder: Path, merged: Merged) -> None:
    """Add the rows and profiles of a model in a folder, if they fit."""
    bundle = read_bundle(folder / "rows" / location.folder)
    _check_made_alike(bundle, lab.configuration(location))
    rows = HeldRows(bundle.stored.rows, lab.out).rows
    if why := _asked_otherwise(merged.rows[location], rows) or answers_differ(
        merged.rows[location], rows
    ):
        raise InvalidInput(
            f"{str(bundle.folder)!r} cannot be merged: {why}. Run those samples on one machine, or "
            "write a page for each folder."
        )
    merged.rows[location] += rows
    for path in sorted((folder / "profiles" / location.folder).glob("*.json")):
        target = lab.out / "profiles" / location.folder / path.name
        there = merged.profiles.get(target) or (target.read_bytes() if target.exists() else b"")
        if there and there != path.read_bytes():
            raise InvalidInput(
                f"{str(path)!r} cannot be merged: its numbers differ from those of the same "
                "profile in another folder, and so do answers under it. Copy the profiles of one "
                "machine into --out of the others before they start."
            )
        merged.profiles[target] = path.read_bytes()


def _check_made_alike(bundle: Bundle, expected: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless a folder's rows have the same settings. The path of the model may
    differ by machine; a digest of its weights identifies it.
    """
    theirs, expected = UNSAID | bundle.stored.configuration, {**UNSAID, **expected}
    settings = {*theirs, *expected} - {"schema", "model", "versions"}
    ours = {name: expected.get(name) for name in sorted(settings)}
    stored = {name: theirs.get(name) for name in ours}
    for name in VERSIONS:
        ours[name], stored[name] = (
            _public(configuration, name) for configuration in (expected, theirs)
        )
    if differing := [name for name in ours if ours[name] != stored[name]]:
        name = differing[0]
        raise InvalidInput(
            f"{str(bundle.folder)!r} cannot be merged: it has {name}={stored[name]!r}, and this "
            f"run {ours[name]!r}. Give the options of that folder's run, or leave it out."
        )


def _public(configuration: Mapping[str, Any], name: str) -> str:
    return str(configuration.get("versions", {}).get(name)).partition("+")[0]


def _asked_otherwise(mine: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> str:
    """Name a sample that differs between both, by its digest or its index; "" if none does."""
    answered = {key_of(row)[:2]: row for row in mine if "error" not in row}
    at: dict[tuple[str, Any], Key] = {
        (row["task"], row["place"]): key_of(row) for row in mine if "place" in row
    }
    for row in theirs:
        task, sample, _ = key_of(row)
        other = answered.get((task, sample))
        if other is not None and "error" not in row and not same_question(other, row):
            return f"sample {sample} of {task} is another question there"
        there = at.get((task, row.get("place")))
        if there is not None and there[1] != sample:
            return (
                f"sample {row['place']} of {task} is {sample} in its data, and {there[1]} elsewhere"
            )
    return ""
