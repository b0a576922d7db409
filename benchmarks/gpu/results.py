"""What the suite has found: gpu.json, and the page that tells of it, gpu.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setting import SuiteSetting
from foveate.data import files
from foveate.errors import InvalidInput
from foveate.loading.hardware import processor, versions

DATA, PAGE = "gpu.json", "gpu.md"
NO_GPU = (
    "**NOT A GPU.** These figures are of toy sizes on a CPU. They show that the suite runs, and "
    "nothing else."
)
TOY = "**Toy sizes.** These figures show that the suite runs, and nothing else."


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
    path = folder / DATA
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


def write(folder: Path, facts: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Both files, each whole or as it was.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    with files.reporting(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / DATA, json.dumps({"machine": facts, "parts": parts}, indent=1) + "\n")
    files.write(folder / PAGE, page(facts, parts))


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
