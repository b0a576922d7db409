"""Runner of the suite. Every row is written as it arrives, so an interrupted run keeps its rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import output
from benchmarks.gpu import checks, kernels
from benchmarks.gpu.facts import page as facts_page
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.processes import PartOutcome, apart
from benchmarks.gpu.rows import Row
from foveate.errors import InvalidInput, suggest
from foveate.loading.hardware import processor, versions

NAME = "gpu"
NO_GPU = (
    "**NOT A GPU.** These figures are of toy sizes on a CPU. They show that the suite runs, and "
    "nothing else."
)
TOY = "**Toy sizes.** These figures show that the suite runs, and nothing else."
PATIENCE = 10
"""Factor on a part's limit at toy sizes, because a CPU may have other work."""

Report = Callable[[str, str], object]
"""Callback with a part's name and a status text."""


def run_suite(
    setting: SuiteSetting,
    folder: Path,
    *,
    only: Sequence[str] = (),
    anew: bool = False,
    report: Report = lambda part, text: None,
) -> dict[str, Any]:
    """Measure the parts that an earlier run has not, writing gpu.json and gpu.md after each row.

    Args:
        setting: device and sizes.
        folder: folder of the results; created if missing.
        only: parts to measure, even if they have been measured.
        anew: measure all parts again.
        report: called as every part begins and ends.

    Returns:
        For each part: its "state" ("done", "stopped", "failed"), the "reason", "seconds", "rows".

    Raises:
        InvalidInput: an unknown part, or results measured with other settings.
        CannotWrite: the disk is full, or the folder is not writable.
    """
    for name in only:
        if name not in PARTS:
            raise InvalidInput(f"the suite has no part {name!r}. {suggest(name, PARTS)}")
    facts = machine(setting)
    measured = {} if anew else earlier(folder, facts)
    _write(folder, facts, measured)  # fails early if the folder is not writable
    for name in only or _missing(measured, setting):
        report(name, "measuring")

        def heard(so_far: PartOutcome, name: str = name) -> None:
            measured[name] = so_far.as_json()
            _write(folder, facts, measured)

        limit = PARTS[name].limit * (PATIENCE if setting.quick else 1)
        heard(apart(name, setting, limit, heard))
        report(name, _summary(measured[name]))
    return measured


def wrong(measured: dict[str, Any]) -> list[Row]:
    """Return kernels and tests with wrong results."""
    rows = {name: measured.get(name, {}).get("rows", []) for name in ("kernels", "tests")}
    return [*kernels.wrong(rows["kernels"]), *checks.wrong(rows["tests"])]


def _missing(measured: dict[str, Any], setting: SuiteSetting) -> list[str]:
    """Return the parts to measure; kvpress and tests only where they are available."""
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


def _write(folder: Path, facts: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Write both files. Raises CannotWrite if the disk is full, or the folder read-only."""
    output.write(NAME, page(facts, parts), {"machine": facts, "parts": parts}, folder)


def machine(setting: SuiteSetting) -> dict[str, Any]:
    """Return the facts that figures on one page must share."""
    facts: dict[str, Any] = {
        "device": processor(setting.torch_device),
        "quick": setting.quick,
        "kernels": setting.kernels,
        "versions": versions("foveate", "torch", "transformers"),
    }
    if setting.on_gpu:
        major, minor = torch.cuda.get_device_capability()
        facts |= {"capability": f"{major}.{minor}", "cuda": torch.version.cuda}
        facts |= {"memory_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 1)}
    return facts


def earlier(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that an earlier run measured, by name.

    Raises:
        InvalidInput: another machine or other settings, or an unreadable file.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        before, parts = results["machine"], results["parts"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        message = f"{str(path)!r} is no result of the suite ({error}). Move it away."
        raise InvalidInput(message) from error
    differ = [name for name in facts if before.get(name) != facts[name]]
    if differ:
        message = "; ".join(f"{name} {before.get(name)!r}, now {facts[name]!r}" for name in differ)
        raise InvalidInput(
            f"{str(path)!r} was measured otherwise: {message}. Measure all parts --anew, or give "
            "another folder with --out."
        )
    return {name: part for name, part in parts.items() if name in PARTS}


def page(facts: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return the page of all parts; missing and stopped parts are marked."""
    versions = ", ".join(f"{name} {of}" for name, of in facts["versions"].items())
    gpu = "" if "capability" not in facts else (
        f", capability {facts['capability']}, {facts['memory_gib']} GiB, CUDA {facts['cuda']}"
    )  # fmt: skip
    marks = [NO_GPU, ""] if not gpu else [TOY, ""] if facts["quick"] else []
    lines = [
        "# Not a GPU: the suite at toy sizes" if not gpu else "# On a GPU", "", *marks,
        f"{facts['device']}{gpu}; {versions}. Models have the shapes of published ones with random "
        f"weights, in bfloat16, and are measured with the {facts['kernels']} kernels. "
        "`foveate bench --suite gpu` wrote this page.",
    ]  # fmt: skip
    lines += ["", "## What is to be known", "", *facts_page({} if facts["quick"] else parts)]
    for name, part in PARTS.items():
        lines += ["", f"## {part.title}", "", *_part_lines(name, parts.get(name))]
    return "\n".join(lines) + "\n"


def _part_lines(name: str, result: Mapping[str, Any] | None) -> list[str]:
    if result is None:
        return [PARTS[name].missing]
    lines = []
    if result["state"] != "done":
        lines = [f"**{result['state'].capitalize()}: {result['reason']}.** What was measured:", ""]
    return [*lines, *PARTS[name].page(result["rows"])]
