"""Repetition of the first question of every task of the board, compared with what is stored.

    python -m benchmarks.quality.repeat

Takes a minute or two. Right answers and bytes have to be those of benchmarks/results/board.json;
the exit status is 1 if one is not, on any machine and release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.quality.board import FILE, TASKS_ASKED, answer_question
from benchmarks.quality.profiles_made import PROFILES
from foveate.loading.model import load
from foveate_lab.defaults import Protocol
from foveate_lab.eval.task_registry import TASKS

METHODS = (
    f"recommended:profile={PROFILES}/recommended.safetensors",
    "snapkv:window=0.25",
    "lookm",
)
PROTOCOL: Protocol = "query-aware"


def main() -> None:
    """Answer the questions, print what differs, and exit with 1 if anything does."""
    stored = json.loads(FILE.read_text())
    found = repeated(stored, load("demo"))
    differing = list(differences(stored, found))
    for sentence in differing:
        print(sentence)
    print(f"{len(TASKS_ASKED) * (len(METHODS) + 1)} figures repeated, {len(differing)} differ")
    raise SystemExit(bool(differing))


def repeated(stored: dict[str, Any], loaded: Any) -> dict[str, Any]:
    """Return a board with the first question of each task, at the budget of the stored one."""
    board: dict[str, Any] = {"made": stored["made"], "seconds": 0.0, "asked": {}}
    for task in TASKS_ASKED:
        sample = next(TASKS[task].samples(1, 0))
        answer_question(board, loaded, PROTOCOL, task, sample, METHODS, 0)
    return board


def differences(stored: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each figure that is not the stored one."""
    for task, methods in found["asked"][PROTOCOL].items():
        for method, cell in methods.items():
            before = stored["asked"][PROTOCOL][task][method]
            for name in ("right", "bytes"):
                if cell[name][0] != before[name][0]:
                    yield f"{task}, {method}: {name} is {cell[name][0]}, stored {before[name][0]}"


if __name__ == "__main__":
    main()
