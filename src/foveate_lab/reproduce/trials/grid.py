"""A table of answers: methods at budgets down, benchmarks or their parts across."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foveate_lab.eval.keyed_rows import Key
from foveate_lab.report.analyses import Figure
from foveate_lab.report.heat import heat_maps
from foveate_lab.reproduce import stand_in_sizes as sizes
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.stand_in_sizes import ANSWER, PROFILE, PROMPT, some
from foveate_lab.reproduce.tables.plots import Plot, plot_table
from foveate_lab.reproduce.tables.printed import BLANK, printed
from foveate_lab.reproduce.tables.table import (
    NOT_BROUGHT,
    Row,
    Table,
    TableCell,
    TableLayout,
    TableLine,
)
from foveate_lab.reproduce.task_request import Requests, TaskRequest, keys
from foveate_lab.reproduce.trials.answers import answers
from foveate_lab.reproduce.trials.arms import Arm, Column
from foveate_lab.reproduce.trials.draws import drawn_rows
from foveate_lab.reproduce.trials.reductions import COSTS, DRAWN, REDUCTIONS
from foveate_lab.reproduce.trials.warm_up import warm_up_once

SMALL = (
    f"stand-in: answers of at most {ANSWER} tokens, prompts of at most {PROMPT}; profiles of at "
    f"most {PROFILE} samples"
)

AVERAGED = "mean of the columns"


@dataclass(frozen=True, kw_only=True)
class GridTrial(Trial):
    """A table of answers. ``figures`` is the file of the paper's numbers; ``average`` names a
    column that is the mean of all others. ``samples`` is how many of each benchmark the paper runs;
    ``timed`` decodes alone, after ``warm_up`` untimed steps. ``prompt`` bounds the tokens of a
    text. ``layout`` is the paper's, ``plot`` its figure, if it has one. Arms whose values are of
    drawn answers draw at ``temperature``.
    """

    title: str
    arms: tuple[Arm, ...]
    across: tuple[Column, ...]
    budgets: tuple[str, ...] = ("",)
    figures: str = ""
    average: str = ""
    samples: int | None = None
    timed: bool = False
    warm_up: int = 0
    prompt: int | None = None
    temperature: float = 0.0
    layout: TableLayout | None = None
    plot: Plot | None = None

    def tasks(self) -> Sequence[str]:
        """Return the benchmarks that it reads."""
        return list(dict.fromkeys(task for column in self.across for task in column.tasks))

    def specs(self) -> Sequence[str]:
        """Return its policies, with budgets and profiles left open."""
        return list(dict.fromkeys(arm.spec for arm in self.arms))

    def raised(self) -> Iterator[str]:
        """Yield the specs, with budgets, that are raised to what is always kept instead of
        refused.
        """
        for arm in self.arms:
            yield from (arm.spec.replace("{B}", budget) for budget in arm.raised)

    def requests(self, setting: Setting) -> Requests:
        """Return the specs of each benchmark; a stand-in leaves budgets out."""
        requests: dict[TaskRequest, dict[str, str]] = {}
        left_out = {*self.budgets} - {*some(self.budgets)} if setting.small else set()
        for column in self.across:
            for arm, budget in self._lines(setting.model):
                left = budget in left_out or setting.missing_file(arm.spec, budget)
                for task in () if left else column.tasks:
                    spec = setting.spec(arm.spec_for(task, setting.model), budget)
                    requests.setdefault(self._request(setting, task), {})[spec] = budget
        return requests

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield the missing rows that are timed or drawn."""
        warm = sizes.STEPS if setting.small else self.warm_up
        load = warm_up_once(setting.load, warm) if self.warm_up else setting.load
        for request, specs in self.requests(setting).items():
            if request.timed:
                yield from answers(replace(setting, load=load), request, specs)
        for request in self._drawn_requests(setting):
            yield from drawn_rows(setting, request, self.temperature)

    def measured(self, setting: Setting) -> Iterator[Key]:
        """Yield a row of each sample whose answers are drawn."""
        for request in self._drawn_requests(setting):
            yield from keys(request, {}, setting.names(request), setting.part)

    def _drawn_requests(self, setting: Setting) -> list[TaskRequest]:
        """Return the benchmarks of columns that some arm fills with drawn answers."""
        values = {name for arm in self.arms for name, value in arm.values.items() if value in DRAWN}
        tasks = dict.fromkeys(
            task for column in self.across if column.value in values for task in column.tasks
        )
        return [self._drawn_request(setting, task) for task in tasks]

    def _drawn_request(self, setting: Setting, task: str) -> TaskRequest:
        request = self._request(setting, task)
        mark = f"two draws at temperature {self.temperature}"
        return request._replace(timed=False, marks=(*request.marks, mark))

    def _request(self, setting: Setting, task: str) -> TaskRequest:
        """Return the request for a benchmark; marks separate rows that are timed or of cut
        prompts.
        """
        marks = [f"{self.prompt} tokens"] if self.prompt else []
        marks += ["timed"] if self.timed else []
        longest = min(self.prompt or PROMPT, PROMPT) if setting.small else self.prompt
        return TaskRequest(task, setting.count(self.samples), longest, self.timed, tuple(marks))

    def _lines(self, model: str) -> Iterator[tuple[Arm, str]]:
        for arm in self.arms:
            if not arm.models or model in arm.models:
                for budget in arm.budgets or (self.budgets if "{" in arm.spec else ("",)):
                    yield arm, budget

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """Yield the table, with the models one below the other, and maps of where needles were."""
        table = self._table(settings)
        yield table
        if self.plot:
            yield plot_table(self.plot, table)
        for setting in settings:
            requests = self.requests(setting)
            there = setting.rows(requests)
            mine = (
                row
                for request, specs in requests.items()
                for row in there[request.name]
                if row["spec"] in specs
            )
            yield from heat_maps([row for row in mine if "error" not in row])

    def _table(self, settings: Sequence[Setting]) -> Table:
        names = [column.name for column in self.across]
        small = any(setting.small for setting in settings)
        return Table(
            self.title,
            tuple(names + ([self.average] if self.average else [])),
            tuple(line for setting in settings for line in self._fill(setting)),
            shrunk=(*(self._shrunk() if small else ()), *self._missing(settings)),
            costs=tuple(column.name for column in self.across if column.value in COSTS),
            aside=tuple(names) if self._prints_only_the_average() else (),
            layout=self.layout,
        )

    def _prints_only_the_average(self) -> bool:
        lines = printed(self.figures).values()
        return bool(lines) and all({*line.texts} == {self.average} for line in lines)

    def _shrunk(self) -> tuple[str, ...]:
        few = len(some(self.budgets)), len(self.budgets)
        return (SMALL, *([f"stand-in: {few[0]} of {few[1]} budgets"] if few[0] < few[1] else []))

    def _missing(self, settings: Sequence[Setting]) -> Sequence[str]:
        """Return a note on published files that are missing, if any are."""
        files = dict.fromkeys(
            missing_file.name
            for setting in settings
            for arm, budget in self._lines(setting.model)
            if (missing_file := setting.missing_file(arm.spec, budget))
        )
        return [f"lines stay empty without published/: {', '.join(files)}"] if files else []

    def _fill(self, setting: Setting) -> Iterator[TableLine]:
        figures = printed(self.figures)
        rows: dict[tuple[str, str], list[Row]] = {}
        requests = [*self.requests(setting), *self._drawn_requests(setting)]
        for task, there in setting.rows(requests).items():
            for row in there:
                rows.setdefault((task, row["spec"]), []).append(row)
        for arm, budget in self._lines(setting.model):
            of_paper = figures.get((setting.model, arm.name, budget), BLANK)
            cells = [
                of_paper.cell(column.name, self._cell(setting, rows, arm, budget, column))
                for column in self.across
            ]
            if self.average:
                cells.append(of_paper.cell(self.average, _average(cells)))
            yield TableLine(
                setting.model,
                arm.name,
                budget,
                arm.spec,
                of_paper.source,
                tuple(cells),
                arm.over,
                tuple(self._full_specs(arm, setting.model)),
            )

    def _full_specs(self, arm: Arm, model: str) -> Iterator[tuple[str, str]]:
        """Yield an arm's specs, each with its benchmarks: "" for all."""
        names: dict[str, list[str]] = {}
        for task in self.tasks():
            names.setdefault(arm.spec_for(task, model), []).append(task)
        for spec, tasks in names.items():
            yield spec, "" if len(names) == 1 else ", ".join(tasks)

    def _cell(
        self,
        setting: Setting,
        rows: Mapping[tuple[str, str], Sequence[Row]],
        arm: Arm,
        budget: str,
        column: Column,
    ) -> TableCell:
        if missing_file := setting.missing_file(arm.spec, budget):
            return TableCell(None, None, f"{NOT_BROUGHT}: {missing_file}")
        value = arm.values.get(column.value, column.value)
        request_of = self._drawn_request if value in DRAWN else self._request
        cells = [request_of(setting, task) for task in column.tasks]
        if why := next(
            (setting.read[request_of] for request_of in cells if setting.read.get(request_of)), ""
        ):
            return TableCell(None, None, f"no data: {why}")
        specs = [setting.spec(arm.spec_for(task, setting.model), budget) for task in column.tasks]
        if why := next((setting.unmeasured[s] for s in specs if s in setting.unmeasured), ""):
            return TableCell(None, None, f"no profile: {why}")
        mine = [
            row
            for request_of, spec in zip(cells, specs, strict=True)
            for row in rows.get((request_of.name, spec), ())
            if column.matches(row)
        ]
        there = [row for row in mine if "error" not in row]
        return TableCell(
            REDUCTIONS[value](there) if there else None,
            None,
            samples=len(there),
            refused=len(mine) - len(there),
            raised=sum(bool(row.get("raised")) for row in there),
        )


def _average(cells: Sequence[TableCell]) -> TableCell:
    """Return the mean of the other columns; empty unless all of them have a number."""
    numbers = [cell.measured for cell in cells if cell.measured is not None]
    complete = bool(cells) and len(numbers) == len(cells)
    return TableCell(sum(numbers) / len(numbers) if complete else None, None, AVERAGED)
