"""Tables of ``foveate run``, 80 columns wide: numbers, then the answers.

For its default prompt, also the right answer, and how often each policy keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from foveate.cli import tables
from foveate.cli.run.measure import ComparisonRow
from foveate.cli.tables import short
from foveate.compression.labels import Named, named
from foveate.loading.model import demo

_NUMBERS = (
    tables.spec("Method", "method"),
    tables.number("Budget", "budget"),
    tables.number("Tokens\nkept", "kept_tokens", ",.0f"),
    tables.mib("KV\nMiB", "kv_bytes", ",.2f"),
    tables.number("Prefill\ns", "prefill_s", ".2f"),
    tables.number("Compress\ns", "compress_s", ".2f"),
    tables.number("Decode\nms/token", "decode_ms_per_token", ".1f"),
)


def rendered(rows: Sequence[ComparisonRow], known: Known | None = None) -> Group:
    """Return a table of numbers and, below, one of the answers; judged if ``known`` is given."""
    numbers = tables.table(rows, *_NUMBERS, padding=tables.CLOSE)
    pruned = [row for row in rows if _has_parts(row) or row.visual_computed is not None]
    answers = (
        [_answers(rows)] if known is None else [_judged_answers(rows, known), "", _legend(known)]
    )
    return Group(numbers, *(_remaining_line(row, rows[0]) for row in pruned), "", *answers)


def _has_parts(row: ComparisonRow) -> bool:
    """Return True if the policy shrinks the prompt in more than one way."""
    return row.remaining is not None and len(row.remaining.parts) > 1


def _remaining_line(row: ComparisonRow, full: ComparisonRow) -> Text:
    """Describe how much of the prompt a policy left, and the time that pruning saved."""
    name = f"{short(row.method)} {row.budget or ''}".rstrip()
    parts = [str(row.remaining)] if _has_parts(row) else []
    if row.visual_computed is not None and not parts:
        parts = [f"{row.visual_computed:.0%} of the visual tokens computed"]
    if row.visual_computed is not None:
        parts.append(f"prefill in {row.prefill_s:.2f} s instead of {full.prefill_s:.2f} s")
    return Text(f"{name}: {'; '.join(parts)}")


def _answers(rows: Sequence[ComparisonRow]) -> Table:
    """Return a table of the answers, with the token where each leaves the full cache's."""

    def name(row: ComparisonRow) -> str:
        return f"{tables.broken(short(row.method))} {row.budget or ''}".strip()

    return tables.table(
        rows,
        tables.column("Method", name, overflow="fold", max_width=24),
        _ANSWER,
        tables.number("Departs at\ntoken", "first_divergence", none="never"),
        padding=tables.CLOSE,
    )


def _judged_answers(rows: Sequence[ComparisonRow], known: Known) -> Table:
    """Return a table of the answers, each right or wrong, with its policy's results."""
    count, right, wrong = known.evaluation.questions, Text("right", "green"), Text("wrong", "red")
    return tables.table(
        rows,
        tables.spec("Method", "method"),
        _ANSWER,
        tables.column("It is", lambda row: right if known.right(row) else wrong, no_wrap=True),
        tables.number(f"Same\nof {count}", lambda row: known.figures(row).same),
        tables.number(f"Right\nof {count}", lambda row: known.figures(row).right),
        padding=tables.CLOSE,
    )


def _legend(known: Known) -> Text:
    evaluation = known.evaluation
    where = f"{evaluation.task}, {evaluation.protocol}, seed {evaluation.seed}"
    return Text(
        f"Same, Right: of {evaluation.questions} questions about three documents each ({where}), "
        "measured beforehand, the answers that equal the full cache's, and those that are right."
    )


def _without_blank_lines(row: ComparisonRow) -> str:
    """Return the answer without blank lines."""
    return "\n".join(line for line in row.answer.splitlines() if line.strip()) or "(nothing)"


_ANSWER = tables.column("Answer", _without_blank_lines, overflow="fold")


class Figures(NamedTuple):
    """Results of one policy: answers equal to the full cache's, right answers, mean bytes."""

    same: int
    right: int
    kv_bytes: int


class Evaluation(NamedTuple):
    """Results of each policy, by its spec, on a number of questions of one task."""

    task: str
    protocol: str
    seed: int
    questions: int
    by_spec: dict[str, Figures]


def stored() -> Evaluation:
    """Read the results that benchmarks/quality/first_minute.py wrote."""
    written: dict[str, Any] = json.loads(demo().FIGURES.read_text(encoding="utf-8"))
    by_spec = {row.pop("spec"): Figures(**row) for row in written["rows"]}
    about = {name: written[name] for name in ("task", "protocol", "seed", "questions")}
    return Evaluation(**about, by_spec=by_spec)


@dataclass(frozen=True)
class Known:
    """The right answer to the default prompt, and the policies' results in an evaluation."""

    answer: str
    evaluation: Evaluation
    by_method: dict[Named, Figures]

    def right(self, row: ComparisonRow) -> bool:
        """Return True if the row's answer is exactly the right one."""
        return row.answer.strip() == self.answer

    def figures(self, row: ComparisonRow) -> Figures:
        """Return the results of the row's policy."""
        return self.by_method[Named(short(row.method), row.budget or "")]

    def about(self) -> dict[str, Any]:
        """Return the right answer and the evaluation's settings, for JSON."""
        about = {"right_answer": self.answer, **self.evaluation._asdict()}
        del about["by_spec"]
        return about

    def of(self, row: ComparisonRow) -> dict[str, Any]:
        """Return a row's results for JSON; numbers are out of all ``questions``."""
        figures = self.figures(row)
        same, right = figures.same, figures.right
        return {"right": self.right(row), "same_answers": same, "right_answers": right}


def known_answers() -> Known:
    """Return the right answer to the album's question, and the default policies' results."""
    evaluation = stored()
    by_method = {named(spec): figures for spec, figures in evaluation.by_spec.items()}
    return Known(demo("album").ANSWER, evaluation, by_method)
