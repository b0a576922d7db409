"""Where measurements are written: a table for people, and the same as JSON, with the machine."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DEMO = Path(__file__).parents[1] / "demo_model" / "pyproject.toml"


def demo() -> str:
    """What was asked, with its version: other weights answer otherwise."""
    with DEMO.open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    return f"demo model {version}"


def write(name: str, text: str, data: Any) -> None:
    """``results/NAME.md`` and ``results/NAME.json``."""
    write_data(name, data)
    (RESULTS / f"{name}.md").write_text(text.rstrip("\n") + "\n")


def write_data(name: str, data: Any) -> None:
    """``results/NAME.json`` alone."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def write_part(name: str, part: str, text: str) -> None:
    """What stands between ``<!-- PART -->`` and ``<!-- /PART -->`` in ``results/NAME.md``."""
    page = RESULTS / f"{name}.md"
    begin, end = f"<!-- {part} -->\n", f"\n<!-- /{part} -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + end + rest.split(end)[1])
