"""What the census found, by release of transformers and type: ``verdicts.json``."""

from __future__ import annotations

import json
from pathlib import Path

from .verdict import Verdict

FILE = Path(__file__).parent / "verdicts.json"

Known = dict[str, dict[str, Verdict]]
"""By release and type."""


def read() -> Known:
    """All that was written."""
    if not FILE.exists():
        return {}
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        release: {
            name: Verdict(name, **{**facts, "steps": tuple(facts.get("steps", ()))})
            for name, facts in types.items()
        }
        for release, types in stored.items()
    }


def write(known: Known) -> None:
    """Releases and types in order; what is empty is left out."""
    stored = {
        release: {name: _facts(known[release][name]) for name in sorted(known[release])}
        for release in sorted(known, key=lambda text: [int(part) for part in text.split(".")])
    }
    FILE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _facts(one: Verdict) -> dict[str, object]:
    return {key: value for key, value in one._asdict().items() if key != "name" and value}
