"""The whole suite, part by part. Each row is written as it comes, and kept however the run ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import checks, kernels, results
from benchmarks.gpu.apart import PartOutcome, apart
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import Row
from benchmarks.gpu.setting import SuiteSetting
from foveate.errors import InvalidInput, suggest

PATIENCE = 10
"""At toy sizes, how many times a part's limit it may take: a CPU may have other work to do."""

Told = Callable[[str, str], object]
"""Called with a part's name and what there is to say of it."""


def run_suite(
    setting: SuiteSetting,
    folder: Path,
    *,
    only: Sequence[str] = (),
    anew: bool = False,
    report: Told = lambda part, said: None,
) -> dict[str, Any]:
    """Measures the parts that an earlier run has not, and writes gpu.json and gpu.md after
    each row.

    Args:
        setting: where, and how large.
        folder: where the results are, and go; made if there is none.
        only: these parts, whether or not they have been measured.
        anew: all parts, whatever the folder holds.
        report: hears of every part as it begins and ends.

    Returns:
        By part's name: its "state" ("done", "stopped", "failed"), the "reason", "seconds", "rows".

    Raises:
        InvalidInput: no such part, or a folder whose results were measured otherwise.
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    for name in only:
        if name not in PARTS:
            raise InvalidInput(f"the suite has no part {name!r}. {suggest(name, PARTS)}")
    facts = results.machine(setting)
    measured = {} if anew else results.earlier(folder, facts)
    results.write(folder, facts, measured)  # an impossible folder shows before minutes have passed
    for name in only or _missing(measured, setting):
        report(name, "measuring")

        def heard(so_far: PartOutcome, name: str = name) -> None:
            measured[name] = so_far.as_json()
            results.write(folder, facts, measured)

        limit = PARTS[name].limit * (PATIENCE if setting.quick else 1)
        heard(apart(name, setting, limit, heard))
        report(name, _summary(measured[name]))
    return measured


def wrong(measured: dict[str, Any]) -> list[Row]:
    """Of kernels and tests: what did not come out as it should."""
    rows = {name: measured.get(name, {}).get("rows", []) for name in ("kernels", "tests")}
    return [*kernels.wrong(rows["kernels"]), *checks.wrong(rows["tests"])]


def _missing(measured: dict[str, Any], setting: SuiteSetting) -> list[str]:
    """The parts that are not done; kvpress's where there is one to compare with, and the tests
    where they are.
    """
    here = {"kvpress": setting.peer_python is not None, "tests": checks.missing() is None}
    return [
        name
        for name in PARTS
        if measured.get(name, {}).get("state") != "done" and here.get(name, True)
    ]


def _summary(part: dict[str, Any]) -> str:
    failed = sum("failed" in row for row in part["rows"])
    rest = f", {failed} of {len(part['rows'])} rows without figures" if failed else ""
    reason = f": {part['reason']}" if part["reason"] else ""
    return f"{part['state']} after {part['seconds']:.0f} s{reason}{rest}"
