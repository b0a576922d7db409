"""Tables of `board.py`: shares of right answers, differences to the best, pairwise wins."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from benchmarks.quality.named import name, short
from foveate_lab.eval.summary import Estimate, estimate, mean_difference

FULL, REFUSED = "full", "x"
REFERENCES = (FULL, "oracle", "random")
BESIDE = 12  # number of methods in the matrix
Board = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, str]]
"""Bits per question, by method and task."""


def text(board: Board) -> str:
    """Return the page."""
    settings, hours = board["made"], board["seconds"] / 3600
    lines = [
        "# A board with power",
        "",
        f"The best methods and the five papers' on the {settings['demo']} at {settings['budget']}, "
        "right letter by letter; intervals are of 95 %, differences paired over the same "
        "questions. In the matrix: questions that the row's method has right and the column's "
        "wrong, bold where the interval of the difference lies above zero. "
        f"{hours:.1f} hours on one thread of "
        f"{board['machine']}, torch {settings['torch']}, transformers {settings['transformers']}.",
    ]
    for protocol, results in board["asked"].items():
        lines += ["", f"## {protocol.capitalize()}", "", table(results), "", matrix(results)]
    return "\n".join(lines)


def answers(results: Board) -> Answers:
    """Return the answers of methods that were asked on all tasks, on their common questions."""
    several = [
        m for m in results[next(iter(results))] if all(m in methods for methods in results.values())
    ]
    complete_methods = {}
    for task, methods in results.items():
        longest = max(len(methods[m]["right"]) for m in several)
        complete_methods[task] = {m for m in several if len(methods[m]["right"]) == longest}
    named = [m for m in several if all(m in mine for mine in complete_methods.values())]
    return {m: {task: results[task][m]["right"] for task in results} for m in named}


def right(bits: str) -> list[float]:
    """Return 1.0 for right answers, else 0.0; refused questions have none."""
    return [float(bit == "1") for bit in bits]


def over(mine: Mapping[str, str]) -> list[float]:
    """Return the scores of all questions of all tasks."""
    return [score for bits in mine.values() for score in right(bits)]


def refused(mine: Mapping[str, str]) -> bool:
    """Check if a question was refused, which makes figures incomparable."""
    return any(REFUSED in bits for bits in mine.values())


def ranked(found: Answers) -> list[str]:
    """Return the methods, best first."""
    return sorted((m for m in found if not refused(found[m])), key=lambda m: -mean(over(found[m])))


def methods(found: Answers) -> list[str]:
    """Return the methods without references."""
    return [m for m in ranked(found) if m.split(":")[0] not in REFERENCES]


def table(results: Board) -> str:
    """Return a row per method: right answers by task, and the distance to the best."""
    found = answers(results)
    tasks = list(found[FULL])
    best = over(found[methods(found)[0]])
    counts = " | ".join(f"{task}, {len(found[FULL][task])}" for task in tasks)
    lines = [
        f"| | method | all | behind the best | {counts} | cost |",
        f"|{'---|' * (len(tasks) + 5)}",
    ]
    rank = 0
    for method in ranked(found):
        reference = method.split(":")[0] in REFERENCES
        rank += not reference
        mine = over(found[method])
        behind = mean_difference([a - b for a, b in zip(mine, best, strict=True)])
        cells = [
            "" if reference else str(rank),
            name(method),
            _share(estimate(mine)),
            "" if reference or rank == 1 else _signed(behind),
            *(f"{mean(right(found[method][task])):.2f}" for task in tasks),
            "" if method == FULL else _cost(results, method),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    left = [name(m) for m in found if refused(found[m])]
    notes = [f"Refused: {', '.join(left)}."] if left else []
    notes += [f"By {origin}: {', '.join(those)}." for origin, those in _later(results, found)]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def _later(results: Board, found: Answers) -> list[tuple[str, list[str]]]:
    """Return the origins that are not the board's, each with its methods."""
    cells = next(iter(results.values()))
    named: dict[str, list[str]] = {}
    for method in found:
        if origin := cells[method].get("origin"):
            named.setdefault(origin, []).append(name(method))
    return list(named.items())


def matrix(results: Board) -> str:
    """Return pairwise wins: questions that the row's method has right and the column's wrong."""
    found = answers(results)
    named = methods(found)[:BESIDE]
    head = "".join(f" {i} |" for i in range(1, len(named) + 1))
    lines = [f"| | method |{head}", f"|---|---|{'---|' * len(named)}"]
    for i, method in enumerate(named, 1):
        cells = [_wins(over(found[method]), over(found[other])) for other in named]
        cells[i - 1] = ""
        lines.append(f"| {i} | `{short(method)}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _wins(mine: list[float], theirs: list[float]) -> str:
    """Format a count of wins, in bold if the paired difference is significant."""
    won = sum(a > b for a, b in zip(mine, theirs, strict=True))
    ahead = mean_difference([a - b for a, b in zip(mine, theirs, strict=True)]).low > 0
    return f"**{won}**" if ahead else str(won)


def _cost(results: Board, method: str) -> str:
    costs = (cost for methods in results.values() for cost in methods[method]["cost"])
    return f"{100 * median(costs):.1f} %"


def _share(x: Estimate) -> str:
    return f"{x.mean:.2f} ({x.low:.2f} to {x.high:.2f})"


def _signed(x: Estimate) -> str:
    return f"{x.mean:+.2f} ({x.low:+.2f} to {x.high:+.2f})"
