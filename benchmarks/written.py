"""Where measurements are written: a table for people, and the same as JSON, with the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write(name: str, text: str, data: Any) -> None:
    """``results/NAME.md`` and ``results/NAME.json``."""
    write_data(name, data)
    (RESULTS / f"{name}.md").write_text(text.rstrip("\n") + "\n")


def write_data(name: str, data: Any) -> None:
    """``results/NAME.json`` alone."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
