"""Surroundings of a run: a model, the data, the results, and what a stand-in cuts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.eval.judge import Judge
from foveate_lab.eval.keyed_rows import HeldRows
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce import stand_in_sizes as sizes
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.models import MODELS
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.task_request import WHOLE, Drawn, Part, Requests, TaskRequest

Notify = Callable[[str], None]
SHARED = ("milebench", "longbench", "loogle", "needle")  # folders that several tasks share


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of an experiment, with everything that its run needs.

    ``load`` loads the model; it is not called where no row is missing. ``small`` is a stand-in:
    answers, texts and batches are cut. ``calibrations`` are those of all experiments of the run,
    ``along`` are all requests to this model. ``raised`` are specs whose budgets are raised to what
    they always keep; others are refused there. ``say`` is called before long work. ``read`` has the
    requests so far, with why their data could not be read ("" if they could); ``unmeasured`` specs
    without a profile, with the reason. ``part`` is the part of the samples that is run here;
    ``drawn`` has the names of all samples, by benchmark and number.
    """

    model: str
    location: str
    data: Path
    results: HeldRows
    limit: int
    seed: int
    small: bool
    load: Callable[[], Loaded]
    profiles: Path
    calibrations: Mapping[str, CalibrationRun | PublishedProfile] = field(default_factory=dict)
    along: Requests = field(default_factory=dict)
    raised: frozenset[str] = frozenset()
    notify: Notify = lambda what: None
    judge: Judge | None = None
    outside: bool = False
    read: dict[TaskRequest, str] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    part: Part = WHOLE
    drawn: dict[tuple[str, int], Drawn] = field(default_factory=dict)

    def task(self, name: str) -> Task:
        """Return the benchmark of that name, read from the data folder."""
        task_name = sizes.NEEDLES if self.small and name.startswith("needle_grid") else name
        if self.model in MODELS and not self.small:
            task_name = MODELS[self.model].with_options(task_name)
        task = find_task(f"{task_name}={self.data / folder_of(name)}", self.judge, self.outside)
        if not self.small:
            return replace(
                task,
                name=name,
                pixels=self._pixels(task),
                conversations=self._conversations(name, task),
            )
        longest = min(task.longest, sizes.ANSWER)
        # images of a stand-in have one size, within any bounds
        return replace(
            task,
            name=name,
            longest=longest,
            reference_length=sizes.ANSWER,
            pixels=AS_THEY_ARE,
        )

    def _conversations(self, name: str, task: Task) -> Mapping[str, str]:
        """Return the benchmark's conversations, with those of the paper's own harness."""
        if self.model not in MODELS:
            return task.conversations
        return MODELS[self.model].conversations_of(name, task.conversations)

    def _pixels(self, task: Task) -> Pixels:
        """Return the benchmark's own bounds of an image, or else the model's."""
        of_model = MODELS[self.model].pixels if self.model in MODELS else AS_THEY_ARE
        return of_model if task.pixels == AS_THEY_ARE else task.pixels

    def samples(self, request: TaskRequest) -> Iterator[tuple[Task, Sample]]:
        """Yield the samples of a request. Missing or malformed data end it, and ``read`` notes
        why.
        """
        self.read[request] = ""
        try:
            task = replace(self.task(request.task), name=request.name)
            samples = iter(task.samples(request.samples, self.seed))
        except InvalidInput as error:
            self.read[request] = str(error)
            return
        while (sample := self._next(request, samples)) is not None:
            yield task, sample

    def names(self, request: TaskRequest) -> tuple[str, ...]:
        """Return the names of the samples, which are drawn once for all models."""
        key = request.task, request.samples
        if key not in self.drawn:
            names, digest = [], hashlib.sha256()
            for _, sample in self.samples(request):
                names.append(sample.name)
                digest.update(f"{sample.name} {sample.digest} ".encode())
            self.drawn[key] = Drawn(tuple(names), self.read[request], digest.hexdigest()[:16])
        self.read[request] = self.drawn[key].why
        return self.drawn[key].names

    def _next(self, request: TaskRequest, samples: Iterator[Sample]) -> Sample | None:
        try:
            return next(samples, None)
        except InvalidInput as error:
            self.read[request] = str(error)
            return None

    def rows(self, requests: Iterable[TaskRequest]) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each request's first samples, by task name; other requests may have
        run more of them.
        """
        counts = {request.name: request.samples for request in requests}
        indices: dict[str, dict[str, int]] = {name: {} for name in counts}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
        for row in self.results.rows:
            if (mine := indices.get(row["task"])) is not None:
                index = mine.setdefault(row["sample"], row.get("place", len(mine)))
                if index < counts[row["task"]]:
                    rows[row["task"]].append(row)
        return rows

    def count(self, samples: int | None) -> int:
        """Return the number of samples to run, given the paper's."""
        return min(self.limit, samples) if samples else self.limit

    def spec(self, template: str, budget: str) -> str:
        """Return the spec at a budget, with the paths of its profiles."""
        spec = template.replace("{B}", budget)
        for name, calibration in self.calibrations.items():
            path = self.profiles / calibration.file(name, budget)
            spec = spec.replace("{" + name + "}", f"'{path.as_posix()}'")
        return spec

    def profiles_of(self, specs: Mapping[str, str]) -> dict[str, dict[Path, str]]:
        """Return the missing profile files of these specs, with their budgets; by calibration."""
        profiles: dict[str, dict[Path, str]] = {}
        for name, calibration in self.calibrations.items():
            for spec, budget in specs.items():
                path = self.profiles / calibration.file(name, budget)
                if f"'{path.as_posix()}'" in spec and not path.exists():
                    profiles.setdefault(name, {})[path] = budget
        return profiles

    def calibrate(self, specs: Mapping[str, str]) -> None:
        """Measure the profiles that these specs name, unless they exist. Specs are given with
        budgets.
        """
        for name, paths in self.profiles_of(specs).items():
            calibration = self.calibrations[name]
            self.notify(f"profile {name}")
            if isinstance(calibration, PublishedProfile):
                calibration.make(self.load(), paths, self.data, self.model)
            else:
                calibration.measure(self.load(), paths, self.task, cut=self.small)

    def missing_file(self, template: str, budget: str) -> Path | None:
        """Return the published file that a spec needs and that is missing, or None."""
        for name, profile in self.calibrations.items():
            if isinstance(profile, PublishedProfile) and "{" + name + "}" in template:
                path = self.profiles / profile.file(name, budget)
                file = profile.source_path(self.data, self.model, budget)
                if not path.exists() and not file.is_file():
                    return file
        return None


def folder_of(task: str) -> str:
    """Return the name of the folder with a benchmark's data."""
    kind = re.split(r"[_(=]", task)[0]
    return kind if kind in SHARED else task.split("(")[0]
