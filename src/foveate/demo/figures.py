"""How often the demo model's answers stay what they were, for what ``foveate run`` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent / "figures.json"


class Figures(NamedTuple):
    """What one policy did on all questions: how many answers were the full cache's, how many were
    right letter by letter, and the bytes held, the mean over the questions.
    """

    same: int
    right: int
    kv_bytes: int


class Evaluation(NamedTuple):
    """A number of questions of one task, asked under each policy, by its spec."""

    task: str
    protocol: str
    seed: int
    questions: int
    by_spec: dict[str, Figures]


def stored() -> Evaluation:
    """What benchmarks/first_minute.py wrote."""
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    by_spec = {
        row["spec"]: Figures(row["same"], row["right"], row["kv_bytes"]) for row in told["rows"]
    }
    return Evaluation(told["task"], told["protocol"], told["seed"], told["questions"], by_spec)
