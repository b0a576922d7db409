"""The whole suite, part by part; what is written after each is kept if the next one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foveate.bench.suite import results
from foveate.bench.suite.apart import apart
from foveate.bench.suite.parts import PARTS
from foveate.bench.suite.rows import Row
from foveate.bench.suite.setting import Setting
from foveate.errors import InvalidInput, suggest

PATIENCE = 10
"""At toy sizes, how many times a part's limit it may take: a CPU may have other work to do."""

Told = Callable[[str, str], object]
"""Called with a part's name and what there is to say of it."""


def run_suite(
    setting: Setting,
    folder: Path,
    *,
    only: Sequence[str] = (),
    anew: bool = False,
    told: Told = lambda part, said: None,
) -> dict[str, Any]:
    """Measures the parts that an earlier run has not, and writes gpu.json and gpu.md after each.

    Args:
        setting: where, and how large.
        folder: where the results are, and go; made if there is none.
        only: these parts, whether or not they have been measured.
        anew: all parts, whatever the folder holds.
        told: hears of every part as it begins and ends.

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
    found = {} if anew else results.earlier(folder, facts)
    results.write(folder, facts, found)  # an impossible folder shows before minutes have passed
    for name in only or _missing(found, setting):
        told(name, "measuring")
        outcome = apart(name, setting, PARTS[name].limit * (PATIENCE if setting.quick else 1))
        found[name] = outcome.as_json()
        results.write(folder, facts, found)
        told(name, _summary(found[name]))
    return found


def default_folder() -> Path:
    """The results of the checkout that Foveate runs from; where it is none, the current folder."""
    checkout = Path(__file__).parents[4] / "benchmarks" / "results"
    return checkout if checkout.is_dir() else Path.cwd()


def wrong(found: dict[str, Any]) -> list[Row]:
    """The comparisons of kernels with their references that did not come out equal."""
    return [row for row in found.get("kernels", {}).get("rows", []) if not row.get("ok")]


def _missing(found: dict[str, Any], setting: Setting) -> list[str]:
    """The parts that are not done; kvpress's where there is one to compare with."""
    return [
        name
        for name in PARTS
        if found.get(name, {}).get("state") != "done"
        and (name != "kvpress" or setting.peer_python is not None)
    ]


def _summary(part: dict[str, Any]) -> str:
    failed = sum("failed" in row for row in part["rows"])
    rest = f", {failed} of {len(part['rows'])} rows without figures" if failed else ""
    reason = f": {part['reason']}" if part["reason"] else ""
    return f"{part['state']} after {part['seconds']:.0f} s{reason}{rest}"
