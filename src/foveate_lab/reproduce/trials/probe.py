"""Measurements of prompts as they are read, drawn or put into a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from foveate.hf import Recording, record
from foveate.loading.model import Loaded
from foveate.profiles.profile import load
from foveate.prompts.prompt import Prompt
from foveate.prompts.sample import Sample
from foveate_lab.eval.answering.reading import FULL, read_prompt
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.eval.task_registry import Task
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.stand_in_sizes import PROMPT
from foveate_lab.reproduce.tables.table import Row, Table
from foveate_lab.reproduce.task_request import TaskRequest, keys
from foveate_lab.reproduce.trials.answers import calibrate, missing


@dataclass(frozen=True)
class ProbedPrompt:
    """A prompt that was read with the full cache."""

    loaded: Loaded
    prompt: Prompt
    recording: Recording


class Measure(ABC):
    """A measurement of one prompt, and a drawing or table of several. ``sums``: it needs column
    sums.
    """

    sums = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the rows, with all that their numbers depend on."""

    def specs(self) -> Sequence[str]:
        """Return the policies that it compares."""
        return ()

    @abstractmethod
    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return numbers of one prompt, as JSON takes them."""

    @abstractmethod
    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Table | Figure]:
        """Yield what those of several prompts show."""


@dataclass(frozen=True, kw_only=True)
class Probe(Trial):
    """A measure of the prompts of some benchmarks.

    ``replacements`` are other benchmarks for single models, such as text for a language model.
    ``samples`` limits the samples of each; None is all. ``estimate`` is a profile at each of the
    measure's budgets, to compare with.
    """

    measure: Measure
    each: tuple[str, ...] = ()
    replacements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    samples: int | None = 100
    estimate: str = ""

    def tasks(self) -> Sequence[str]:
        """Return the benchmarks that it reads."""
        more = (task for tasks in self.replacements.values() for task in tasks)
        return list(dict.fromkeys((*self.each, *more)))

    def specs(self) -> Sequence[str]:
        """Return the compared policies."""
        return self.measure.specs()

    def profiled(self, setting: Setting) -> Mapping[str, str]:
        """Return the spec of the estimate at each budget."""
        budgets = self._budgets() if self.estimate else ()
        return {self._estimated(setting, budget): budget for budget in budgets}

    def measured(self, setting: Setting) -> Iterator[Key]:
        """Yield the key of each prompt's row."""
        for request in self._each(setting):
            yield from keys(request, {}, setting.names(request), setting.part)

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield the missing rows."""
        calibrate(setting, self.profiled(setting))
        for request in self._each(setting):
            lacking = set(missing(setting, request, {}))
            for index, (task, sample) in enumerate(setting.samples(request) if lacking else ()):
                key = (request.name, sample.name, FULL)
                if key in lacking:
                    named = dict(zip(("task", "sample", "spec"), key, strict=True))
                    yield {**named, "place": index, **self._measured(setting, task, sample)}

    @torch.no_grad()
    def _measured(self, setting: Setting, task: Task, sample: Sample) -> dict[str, Any]:
        loaded = setting.load()
        limit = PROMPT if setting.small else None
        reading = read_prompt(
            loaded, task, sample, "query-aware", timed=False, longest_prompt=limit
        )
        recording = record(loaded.model, sums=self.measure.sums, **reading.prompt.inputs)
        return self.measure.of(ProbedPrompt(loaded, reading.prompt, recording))

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """Yield tables and figures of the rows so far, benchmark by benchmark."""
        for setting in settings:
            for request in self._each(setting):
                prompt_rows = setting.rows([request])[request.name]
                estimates = self._estimates(setting)
                if rows := [{**row, "estimates": estimates} for row in prompt_rows]:
                    yield from self.measure.summarise(setting.model, request.task, rows)

    def _budgets(self) -> Sequence[str]:
        return getattr(self.measure, "budgets", ())

    def _estimated(self, setting: Setting, budget: str) -> str:
        """Return the spec that names the profile at a budget."""
        method = setting.calibrations[self.estimate].method
        return setting.spec(f"{method}:budget={{B}},profile={{{self.estimate}}}", budget)

    def _estimates(self, setting: Setting) -> dict[str, Any]:
        """Return the layers' shares in each existing profile, by budget."""
        if not self.estimate:
            return {}
        calibration, estimates = setting.calibrations[self.estimate], {}
        for budget in self._budgets():
            path = setting.profiles / calibration.file(self.estimate, budget)
            if path.exists():
                estimates[budget] = load(str(path), calibration.method).by_layer
        return estimates

    def _each(self, setting: Setting) -> list[TaskRequest]:
        count, marks = setting.count(self.samples), (self.measure.name,)
        tasks = self.replacements.get(setting.model, self.each)
        return [TaskRequest(task, count, marks=marks) for task in tasks]
