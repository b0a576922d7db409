"""The whole suite, part by part. Each row is written as it comes, and kept however the run ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import written
from benchmarks.gpu import checks, kernels
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
    facts = machine(setting)
    measured = {} if anew else earlier(folder, facts)
    _write(folder, facts, measured)  # an impossible folder shows before minutes have passed
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


def _write(folder: Path, facts: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Write both files. Raises CannotWrite if the disk is full, or the folder read-only."""
    written.write(NAME, page(facts, parts), {"machine": facts, "parts": parts}, folder)


def machine(setting: SuiteSetting) -> dict[str, Any]:
    """What figures must have in common to stand on one page."""
    facts: dict[str, Any] = {
        "device": processor(setting.place),
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
    """The parts that a run before this one has measured, by name.

    Raises:
        InvalidInput: they were measured on another machine or otherwise, or cannot be read.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        before, parts = results["machine"], results["parts"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        said = f"{str(path)!r} is no result of the suite ({error}). Move it away."
        raise InvalidInput(said) from error
    differ = [name for name in facts if before.get(name) != facts[name]]
    if differ:
        said = "; ".join(f"{name} {before.get(name)!r}, now {facts[name]!r}" for name in differ)
        raise InvalidInput(
            f"{str(path)!r} was measured otherwise: {said}. Measure all parts --anew, or give "
            "another folder with --out."
        )
    return {name: part for name, part in parts.items() if name in PARTS}


def page(facts: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """The page of all parts; those that are missing, or stopped, say so."""
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
    for name, part in PARTS.items():
        lines += ["", f"## {part.title}", "", *_told(name, parts.get(name))]
    return "\n".join(lines) + "\n"


def _told(name: str, result: Mapping[str, Any] | None) -> list[str]:
    if result is None:
        return [PARTS[name].missing]
    lines = []
    if result["state"] != "done":
        lines = [f"**{result['state'].capitalize()}: {result['reason']}.** What was measured:", ""]
    return [*lines, *PARTS[name].page(result["rows"])]
