"""The comparison as a person reads it, in 80 columns: a table of numbers, then the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from foveate.cli import console
from foveate.cli.policies import short
from foveate.cli.run.known import Known
from foveate.cli.run.measure import ComparisonRow

_HEADERS = ("Budget", "Tokens\nkept", "KV\nMiB", "Prefill\ns", "Compress\ns", "Decode\nms/token")
_CLOSE = (0, 1, 0, 0)  # blanks around a cell: as few as keep columns apart


def rendered(rows: Sequence[ComparisonRow], known: Known | None = None) -> Group:
    """A table of numbers, and under it each method's answer, with what is known of it."""
    numbers = _table()
    for header in _HEADERS:
        numbers.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        numbers.add_row(Text(broken(short(row.method))), *_numbers(row))
    left = [
        _left(row, rows[0]) for row in rows if _has_parts(row) or row.visual_computed is not None
    ]
    if known is None:
        return Group(numbers, *left, "", _answers(rows))
    return Group(numbers, *left, "", _judged(rows, known), "", _legend(known))


def broken(spec: str, width: int = 21) -> str:
    """The spec on several lines, broken after a plus sign, colon or comma, and before a file's
    ending.
    """
    lines = [""]
    for piece in re.split(r"(?<=[+:,])|(?=\.[a-z])", spec):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _has_parts(row: ComparisonRow) -> bool:
    """Whether a policy leaves less of a prompt in more than one way."""
    return row.remaining is not None and len(row.remaining.parts) > 1


def _left(row: ComparisonRow, full: ComparisonRow) -> Text:
    """What each part of a policy left of the prompt, and what dropping visual tokens before they
    were computed saved.
    """
    name = f"{short(row.method)} {row.budget or ''}".rstrip()
    said = [str(row.remaining)] if _has_parts(row) else []
    if row.visual_computed is not None and not said:
        said = [f"{row.visual_computed:.0%} of the visual tokens computed"]
    if row.visual_computed is not None:
        said.append(f"prefill in {row.prefill_s:.2f} s instead of {full.prefill_s:.2f} s")
    return Text(f"{name}: {'; '.join(said)}")


def _table() -> Table:
    made = console.table("Method", padding=_CLOSE)
    made.columns[0].overflow = "fold"
    return made


def _answers(rows: Sequence[ComparisonRow]) -> Table:
    """Each answer, and the token at which it leaves the full cache's."""
    table = _table()
    table.columns[0].max_width = 24
    table.add_column("Answer", overflow="fold")
    table.add_column("Departs at\ntoken", justify="right", no_wrap=True)
    for row in rows:
        name = f"{broken(short(row.method))} {row.budget or ''}".strip()
        place = row.first_divergence
        departs = "never" if place is None else str(place)
        table.add_row(Text(name), _compact(row.answer), departs)
    return table


def _judged(rows: Sequence[ComparisonRow], known: Known) -> Table:
    """Each answer, whether it is right, and how often the policy's answers are."""
    table, count = _table(), known.evaluation.questions
    table.add_column("Answer", overflow="fold")
    table.add_column("It is", no_wrap=True)
    for header in (f"Same\nof {count}", f"Right\nof {count}"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        figures, is_right = known.figures(row), known.right(row)
        verdict = Text("right", "green") if is_right else Text("wrong", "red")
        table.add_row(
            Text(broken(short(row.method))),
            _compact(row.answer),
            verdict,
            str(figures.same),
            str(figures.right),
        )
    return table


def _legend(known: Known) -> Text:
    evaluation = known.evaluation
    where = f"{evaluation.task}, {evaluation.protocol}, seed {evaluation.seed}"
    return Text(
        f"Of {evaluation.questions} questions about three documents each ({where}), measured "
        "beforehand: how many answers are the very ones of the full cache, and how many are right."
    )


def _compact(answer: str) -> Text:
    """The answer without blank lines."""
    return Text("\n".join(line for line in answer.splitlines() if line.strip()) or "(nothing)")


def _numbers(row: ComparisonRow) -> tuple[str, ...]:
    decode = row.decode_ms_per_token
    return (
        row.budget or "-",
        f"{row.kept_tokens:,.0f}",
        f"{row.kv_bytes / 2**20:,.2f}",
        f"{row.prefill_s:.2f}",
        f"{row.compress_s:.2f}",
        "-" if decode is None else f"{decode:.1f}",
    )
