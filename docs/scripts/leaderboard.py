"""Tables of docs/quality.md, from benchmarks/results/quality.json."""

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
"""Bounds that are measured beside the methods: the best choice of pairs, and a random one."""
NOT_ASKED = {
    "full": "keeps everything: it is the line above each table",
    "kivi": "has no budget: it holds all pairs in fewer bits, and adds to any method "
    "([quantised.md](../benchmarks/results/quantised.md))",
}
"""Methods without a row, with the reason; any other method without one is not measured yet."""
Board = dict[str, Any]


def boards() -> dict[str, Board]:
    """Load the boards by protocol."""
    found: dict[str, Board] = json.loads(
        (ROOT / "benchmarks" / "results" / "quality.json").read_text(encoding="utf-8")
    )["leaderboard"]
    return found


def with_power(protocol: str) -> str:
    """Return the tables of a protocol's board of many questions, as its benchmark wrote them."""
    page = (ROOT / "benchmarks" / "results" / "board.md").read_text(encoding="utf-8")
    return page.partition(f"## {protocol.capitalize()}\n")[2].partition("\n## ")[0].strip()


def not_measured() -> list[str]:
    """Return methods with neither a row nor a reason, such as those added since the benchmark."""
    rows = " ".join(name(row["method"]) for board in boards().values() for row in board["methods"])
    named = {*re.findall(r"\w+", rows), *NOT_ASKED}
    return [method for method in foveate.METHODS if method not in named]


def mean(row: Board) -> float:
    """Average a row's share of right answers over budgets; a refused budget counts as zero."""
    budgets = len(row["cells"]) + len(row["refused"])
    return sum(cell["right"][0] for cell in row["cells"].values()) / budgets


def ranked(board: Board) -> list[Board]:
    """Return the rows that answered at some budget, the best first."""
    rows = [row for row in board["methods"] if row["cells"]]
    return sorted(rows, key=lambda row: (-mean(row), row["cost"]))


def methods(board: Board) -> list[Board]:
    """Return the ranked rows without the references."""
    return [row for row in ranked(board) if row["method"].split(":")[0] not in REFERENCES]


def on_front(board: Board) -> set[str]:
    """Return the methods on the Pareto front of right answers and compression time."""
    rows = methods(board)
    indices = front([Point(row["cost"], mean(row)) for row in rows])
    return {rows[index]["method"] for index in indices}


def table(protocol: str) -> str:
    """Return one row per method, the best first."""
    board = boards()[protocol]
    budgets, best = list(board["tasks"]), on_front(board)
    lines = [
        _full(board),
        "",
        f"| | method | mean | {' | '.join(budgets)} | bytes at 20% | cost |",
        f"|---|---|---|{'---|' * len(budgets)}---|---|",
    ]
    rank = 0
    for row in ranked(board):
        reference = row["method"].split(":")[0] in REFERENCES
        rank += not reference
        cells = [
            "" if reference else str(rank),
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
    """Format a share as the tables do."""
    return f"{100 * share:.1f} %"


def cell(row: Board, budget: str, *, bold: bool) -> str:
    """Format a row's share of right answers at a budget, or "refused".

    ``bold``: use bold type unless it is significantly behind the best.
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
    """Return a list of the questions, tokens and times measured under each protocol."""
    lines = []
    for protocol, board in boards().items():
        counts = " and ".join(f"{n} of {task}" for task, n in board["questions"].items())
        low, high = board["tokens"]
        left_out = [
            f"{' and '.join(set(board['questions']) - set(tasks))} not at {budget}"
            for budget, tasks in board["tasks"].items()
            if set(tasks) != set(board["questions"])
        ]
        lines.append(
            f"* {protocol.capitalize()}: {counts}{''.join(f' ({x})' for x in left_out)}; "
            f"{low} to {high} tokens are compressed. Cost is over {board['prefill_s']:.2f} CPU "
            f"seconds of prefill in the median, one thread of {board['machine']}, "
            f"torch {board['versions']['torch']}."
        )
    return "\n".join(lines)


def refused() -> str:
    """Return one row per missing figure, with the reason."""
    lines = ["| method | where | why |", "|---|---|---|"]
    lines += [f"| `{method}` | everywhere | {why} |" for method, why in NOT_ASKED.items()]
    lines += [f"| `{method}` | everywhere | not measured yet |" for method in not_measured()]
    refusals: dict[tuple[str, str], list[str]] = {}
    for protocol, board in boards().items():
        for row in board["methods"]:
            for budget, why in row["refused"].items():
                refusals.setdefault((name(row["method"]), why), []).append(f"{protocol} {budget}")
    lines += [
        f"| {method} | {', '.join(where)} | {why} |" for (method, why), where in refusals.items()
    ]
    return "\n".join(lines)
