"""Output of benchmarks: a Markdown page, and the same as JSON, with the machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from foveate.data import files
from foveate.loading.hardware import processor

CHECKOUT = Path(__file__).parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"
DEMO = CHECKOUT / "demo_model" / "pyproject.toml"
CPU = torch.device("cpu")


def demo() -> str:
    """Return the demo model's name and version: answers depend on the weights."""
    with DEMO.open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    return f"demo model {version}"


def machine() -> dict[str, Any]:
    """Return the facts that compared figures must share."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": processor(CPU),
    }


def earlier(name: str) -> dict[str, Any]:
    """Return the data of ``results/NAME.json``, or an empty dict if it is missing."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines]


def write(name: str, text: str, data: Any, folder: Path = RESULTS) -> None:
    """Write NAME.md and NAME.json, each atomically."""
    write_data(name, data, folder)
    files.write(folder / f"{name}.md", text.rstrip("\n") + "\n")


def write_data(name: str, data: Any, folder: Path = RESULTS) -> None:
    """Write NAME.json only."""
    with files.reporting(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / f"{name}.json", json.dumps(data, indent=1) + "\n")


def write_part(name: str, part: str, text: str) -> None:
    """Replace the text between ``<!-- PART -->`` and ``<!-- /PART -->`` in ``results/NAME.md``."""
    page = RESULTS / f"{name}.md"
    begin, end = f"<!-- {part} -->\n", f"\n<!-- /{part} -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + end + rest.split(end)[1])
