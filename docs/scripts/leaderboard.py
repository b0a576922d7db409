"""The tables of docs/quality.md, from benchmarks/results/quality.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import foveate
from foveate_lab.report.front import Point, front

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.quality.named import name, short  # noqa: E402

__all__ = ["name", "short"]

REFERENCES = ("oracle", "random")
"""What is asked beside the methods: the best that can be kept, and the worst."""
NOT_ASKED = {
    "full": "keeps everything: it is the line above each table",
    "kivi": "has no budget: it holds all pairs in fewer bits, and adds to any method "
    "([quantised.md](../benchmarks/results/quantised.md))",
}
"""Methods without a row, and why; those of neither were not measured yet."""
Board = dict[str, Any]


def boards() -> dict[str, Board]:
    """By protocol."""
    found: dict[str, Board] = json.loads(
        (ROOT / "benchmarks" / "results" / "quality.json").read_text(encoding="utf-8")
    )["leaderboard"]
    return found


def with_power(protocol: str) -> str:
    """The board of many questions under a protocol: its tables, as its benchmark wrote them."""
    page = (ROOT / "benchmarks" / "results" / "board.md").read_text(encoding="utf-8")
    return page.partition(f"## {protocol.capitalize()}\n")[2].partition("\n## ")[0].strip()


def not_measured() -> list[str]:
    """The methods that no row names and no reason: such as one that was added since."""
    rows = " ".join(name(row["method"]) for board in boards().values() for row in board["methods"])
    named = {*re.findall(r"\w+", rows), *NOT_ASKED}
    return [one for one in foveate.METHODS if one not in named]


def mean(row: Board) -> float:
    """Of a row's budgets; a refused one counts nothing."""
    budgets = len(row["cells"]) + len(row["refused"])
    return sum(cell["right"][0] for cell in row["cells"].values()) / budgets


def ranked(board: Board) -> list[Board]:
    """The best first, of those that answered at some budget."""
    rows = [row for row in board["methods"] if row["cells"]]
    return sorted(rows, key=lambda row: (-mean(row), row["cost"]))


def methods(board: Board) -> list[Board]:
    """The same, without what is asked beside methods."""
    return [row for row in ranked(board) if row["method"].split(":")[0] not in REFERENCES]


def on_front(board: Board) -> set[str]:
    """The methods than which no other answers as well for less time, or better for as little."""
    rows = methods(board)
    places = front([Point(row["cost"], mean(row)) for row in rows])
    return {rows[place]["method"] for place in places}


def table(protocol: str) -> str:
    """One row a method, the best first."""
    board = boards()[protocol]
    budgets, best = list(board["tasks"]), on_front(board)
    lines = [
        _full(board),
        "",
        f"| | method | mean | {' | '.join(budgets)} | bytes at 20% | cost |",
        f"|---|---|---|{'---|' * len(budgets)}---|---|",
    ]
    place = 0
    for row in ranked(board):
        reference = row["method"].split(":")[0] in REFERENCES
        place += not reference
        cells = [
            "" if reference else str(place),
            name(row["method"]),
            f"{mean(row):.2f}",
            *(cell(row, budget, bold=not reference) for budget in budgets),
            _bytes(row),
            percent(row["cost"]) + (" ◆" if row["method"] in best else ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _full(board: Board) -> str:
    shares = " and ".join(
        f"{task} {_share(board['full'][task])}, of {count}"
        for task, count in board["questions"].items()
    )
    return f"The full cache: {shares}."


def _bytes(row: Board) -> str:
    cell = row["cells"].get("20%")
    return percent(cell["bytes"]) if cell else ""


def percent(share: float) -> str:
    """A share as it stands in the tables."""
    return f"{100 * share:.1f} %"


def cell(row: Board, budget: str, *, bold: bool) -> str:
    """A row's share of right answers at a budget, or that it was refused; ``bold``: in bold where
    it is not seen to be behind the best.
    """
    if budget not in row["cells"]:
        return "refused"
    found = row["cells"][budget]
    close = found["behind"][2] >= 0 and found["right"][0] > 0
    return f"**{_share(found['right'])}**" if bold and close else _share(found["right"])


def _share(interval: list[float]) -> str:
    mean, low, high = interval
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def measured() -> str:
    """What was asked, on what."""
    lines = []
    for protocol, board in boards().items():
        asked = " and ".join(f"{n} of {task}" for task, n in board["questions"].items())
        least, most = board["tokens"]
        left_out = [
            f"{' and '.join(set(board['questions']) - set(tasks))} not at {budget}"
            for budget, tasks in board["tasks"].items()
            if set(tasks) != set(board["questions"])
        ]
        lines.append(
            f"* {protocol.capitalize()}: {asked}{''.join(f' ({x})' for x in left_out)}; "
            f"{least} to {most} tokens are compressed. Cost is over {board['prefill_s']:.2f} CPU "
            f"seconds of prefill in the median, one thread of {board['machine']}, "
            f"torch {board['versions']['torch']}."
        )
    return "\n".join(lines)


def refused() -> str:
    """One row for what has no figure, and why."""
    lines = ["| method | where | why |", "|---|---|---|"]
    lines += [f"| `{method}` | everywhere | {why} |" for method, why in NOT_ASKED.items()]
    lines += [f"| `{method}` | everywhere | not measured yet |" for method in not_measured()]
    said: dict[tuple[str, str], list[str]] = {}
    for protocol, board in boards().items():
        for row in board["methods"]:
            for budget, why in row["refused"].items():
                said.setdefault((name(row["method"]), why), []).append(f"{protocol} {budget}")
    lines += [f"| {method} | {', '.join(where)} | {why} |" for (method, why), where in said.items()]
    return "\n".join(lines)
