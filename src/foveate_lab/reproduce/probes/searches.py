"""Sizes of layers as PrefixKV's search finds them: Figs. 4 and 6, Tables 7 and 10."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foveate.pictures.strips import PALETTE
from foveate_lab.analysis import prefix_search
from foveate_lab.eval.answering.analyses import first_row, short
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.tables.printed import BLANK, printed
from foveate_lab.reproduce.tables.table import (
    BUDGETS_ONLY,
    METHODS_ACROSS,
    Row,
    Table,
    TableCell,
    TableLine,
)
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt


@dataclass(frozen=True)
class Searches(Measure):
    """The search at each budget, with each tolerance. ``spread`` and ``steps`` name the paper's
    tables of the spread of sizes and their distance to the estimate, and of the steps of the
    search.
    """

    budgets: tuple[str, ...]
    deltas: tuple[str, ...] = ("0",)
    spread: str = ""
    steps: str = ""
    sums = True

    @property
    def name(self) -> str:
        """Name of the rows, with the budgets and the tolerances."""
        return f"prefix search at {', '.join(self.budgets)}; delta {', '.join(self.deltas)}"

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return the layers' shares and the steps, by budget and tolerance."""
        layers = [first_row(layer) for layer in seen.recording.layers]
        searches: dict[str, Any] = {}
        for budget in self.budgets:
            for delta in self.deltas:
                search = prefix_search(layers, budget, delta=float(delta))
                searches[f"{budget}, {delta}"] = {
                    "ratios": short(search.ratios[0].tolist()),
                    "steps": int(search.steps[0]),
                }
        return {"searched": searches}

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Table | Figure]:
        """Yield the paper's table that is named, or a chart of the layers' sizes."""
        if self.spread:
            yield self._spread(model, task, rows)
        if self.steps:
            yield self._steps(model, task, rows)
        if not self.spread and not self.steps:
            yield self._sizes(model, task, rows)

    def _ratios(self, rows: Sequence[Row], budget: str) -> Any:
        return np.array([row["searched"][f"{budget}, {self.deltas[0]}"]["ratios"] for row in rows])

    def _spread(self, model: str, task: str, rows: Sequence[Row]) -> Table:
        lines = []
        for budget in self.budgets:
            ratios = self._ratios(rows, budget)
            estimate = rows[0].get("estimates", {}).get(budget)
            apart = None if estimate is None else float(np.abs(ratios - estimate).mean())
            of_paper = printed(self.spread).get((model, "PrefixKV", budget), BLANK)
            why = "" if estimate is not None else "no profile to compare with"
            cells = (
                of_paper.cell(
                    "std", TableCell(float(ratios.std(0).mean()), None, samples=len(rows))
                ),
                of_paper.cell("mad", TableCell(apart, None, why, len(rows))),
            )
            lines.append(TableLine(model, "PrefixKV", budget, "", of_paper.source, cells))
        return Table(
            f"Spread of layers' sizes: {task}", ("std", "mad"), tuple(lines), layout=BUDGETS_ONLY
        )

    def _steps(self, model: str, task: str, rows: Sequence[Row]) -> Table:
        lines = []
        for budget in self.budgets:
            for delta in self.deltas:
                steps = [row["searched"][f"{budget}, {delta}"]["steps"] for row in rows]
                name = f"delta {delta}"
                of_paper = printed(self.steps).get((model, name, budget), BLANK)
                cell = TableCell(float(np.mean(steps)), None, samples=len(rows))
                cell = of_paper.cell("steps", cell)
                lines.append(TableLine(model, name, budget, "", of_paper.source, (cell,)))
        return Table(
            f"Steps of the search: {task}", ("steps",), tuple(lines), layout=METHODS_ACROSS
        )

    def _sizes(self, model: str, task: str, rows: Sequence[Row]) -> Figure:
        figure, axis = axes()
        for budget in self.budgets:
            for ratios in self._ratios(rows, budget):
                axis.plot(100 * ratios, color=PALETTE[0], linewidth=0.6, alpha=0.4)
            mean = 100 * self._ratios(rows, budget).mean(0)
            axis.plot(mean, color=PALETTE[1], linewidth=2, label=f"mean at {budget}")
        axis.set(xlabel="layer", ylabel="share of the tokens, %")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
        count = f"{len(rows)} sample{'s' if len(rows) > 1 else ''}"
        return Figure(f"Sizes of layers: {model}, {task}, {count}", svg(figure), "Thin: a sample.")
