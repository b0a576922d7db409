"""What is known beforehand of the comparison that ``foveate run`` makes when nothing is asked for:
the right answer, and how often each policy keeps it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from foveate.cli.run.measure import ComparisonRow
from foveate.cli.tables import short
from foveate.compression.labels import Named, named
from foveate.loading.demo import demo


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
    """What benchmarks/quality/first_minute.py wrote."""
    written: dict[str, Any] = json.loads(demo().FIGURES.read_text(encoding="utf-8"))
    by_spec = {row.pop("spec"): Figures(**row) for row in written["rows"]}
    return Evaluation(*(written[name] for name in Evaluation._fields[:-1]), by_spec)


@dataclass(frozen=True)
class Known:
    """The right answer, and what an evaluation found under the same policies."""

    answer: str
    evaluation: Evaluation
    by_method: dict[Named, Figures]

    def right(self, row: ComparisonRow) -> bool:
        """Whether the row's answer is right, letter by letter."""
        return row.answer.strip() == self.answer

    def figures(self, row: ComparisonRow) -> Figures:
        """How the row's policy did in the evaluation."""
        return self.by_method[Named(short(row.method), row.budget or "")]

    def about(self) -> dict[str, Any]:
        """The right answer and what was evaluated, for JSON."""
        about = {"right_answer": self.answer, **self.evaluation._asdict()}
        del about["by_spec"]
        return about

    def of(self, row: ComparisonRow) -> dict[str, Any]:
        """What is known of one row, for JSON; the numbers are out of all ``questions``."""
        figures = self.figures(row)
        same, right = figures.same, figures.right
        return {"right": self.right(row), "same_answers": same, "right_answers": right}


def known_answers() -> Known:
    """Of the album's question under the policies that are shown by default."""
    evaluation = stored()
    by_method = {named(spec): figures for spec, figures in evaluation.by_spec.items()}
    return Known(demo("album").ANSWER, evaluation, by_method)
