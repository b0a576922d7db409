"""Where and how experiments are run: a model, the data, the results, and what is made small."""

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
from foveate_lab.eval.held import HeldRows
from foveate_lab.eval.judge import Judge
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce import small
from foveate_lab.reproduce.ask import WHOLE, Ask, Asked, Drawn, Part
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.models import MODELS
from foveate_lab.reproduce.published import PublishedProfile

Say = Callable[[str], None]
SHARED = ("milebench", "longbench", "loogle", "needle")  # folders with the data of several tasks


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of an experiment, as it is run now.

    ``load`` gives the model, which is not needed where no row is missing. ``small`` is a stand-in:
    answers, texts and batches are cut. ``calibrations`` are those of all experiments of the run,
    ``along`` is what all of them ask this model. ``raised`` are the specs whose budgets are raised
    to what they always keep; all others are refused there. ``say`` is told what takes long.
    ``read`` has what was asked, with what kept its data from being read, or "" where nothing did;
    ``unmeasured`` the specs whose profiles cannot be measured, with the reason. ``part`` of the
    samples is asked here; ``drawn`` has the names of all, by benchmark and number.
    """

    model: str
    place: str
    data: Path
    results: HeldRows
    limit: int
    seed: int
    small: bool
    load: Callable[[], Loaded]
    profiles: Path
    calibrations: Mapping[str, CalibrationRun | PublishedProfile] = field(default_factory=dict)
    along: Asked = field(default_factory=dict)
    raised: frozenset[str] = frozenset()
    say: Say = lambda what: None
    judge: Judge | None = None
    outside: bool = False
    read: dict[Ask, str] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    part: Part = WHOLE
    drawn: dict[tuple[str, int], Drawn] = field(default_factory=dict)

    def task(self, name: str) -> Task:
        """The benchmark of that name in the data folder, called as it is asked for."""
        task_name = small.NEEDLES if self.small and name.startswith("needle_grid") else name
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
        longest = min(task.longest, small.ANSWER)
        # a stand-in makes images of one size
        return replace(
            task, name=name, longest=longest, reference_length=small.ANSWER, pixels=AS_THEY_ARE
        )

    def _conversations(self, name: str, task: Task) -> Mapping[str, str]:
        """Return the benchmark's conversations, with those of the paper's own harness."""
        if self.model not in MODELS:
            return task.conversations
        return MODELS[self.model].conversations_of(name, task.conversations)

    def _pixels(self, task: Task) -> Pixels:
        """The benchmark's own bounds of an image, or else the model's."""
        of_model = MODELS[self.model].pixels if self.model in MODELS else AS_THEY_ARE
        return of_model if task.pixels == AS_THEY_ARE else task.pixels

    def samples(self, ask: Ask) -> Iterator[tuple[Task, Sample]]:
        """What is asked, sample by sample. Data that are missing, or not as published, end it, and
        that is noted in ``read``.
        """
        self.read[ask] = ""
        try:
            task = replace(self.task(ask.task), name=ask.name)
            samples = iter(task.samples(ask.samples, self.seed))
        except InvalidInput as error:
            self.read[ask] = str(error)
            return
        while (sample := self._next(ask, samples)) is not None:
            yield task, sample

    def names(self, ask: Ask) -> tuple[str, ...]:
        """What the samples are called; they are drawn once for all models."""
        key = ask.task, ask.samples
        if key not in self.drawn:
            names, digest = [], hashlib.sha256()
            for _, sample in self.samples(ask):
                names.append(sample.name)
                digest.update(f"{sample.name} {sample.digest} ".encode())
            self.drawn[key] = Drawn(tuple(names), self.read[ask], digest.hexdigest()[:16])
        self.read[ask] = self.drawn[key].why
        return self.drawn[key].names

    def _next(self, ask: Ask, samples: Iterator[Sample]) -> Sample | None:
        try:
            return next(samples, None)
        except InvalidInput as error:
            self.read[ask] = str(error)
            return None

    def rows(self, asks: Iterable[Ask]) -> dict[str, list[dict[str, Any]]]:
        """What there is of each, by the name that its rows call the task: of its first samples, as
        others may ask more of them.
        """
        counts = {ask.name: ask.samples for ask in asks}
        places: dict[str, dict[str, int]] = {name: {} for name in counts}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
        for row in self.results.rows:
            if (mine := places.get(row["task"])) is not None:
                place = mine.setdefault(row["sample"], row.get("place", len(mine)))
                if place < counts[row["task"]]:
                    rows[row["task"]].append(row)
        return rows

    def count(self, samples: int | None) -> int:
        """How many samples are asked, of as many as the paper asks."""
        return min(self.limit, samples) if samples else self.limit

    def spec(self, template: str, budget: str) -> str:
        """The spec at a budget, with the files of its profiles."""
        spec = template.replace("{B}", budget)
        for name, calibration in self.calibrations.items():
            path = self.profiles / calibration.file(name, budget)
            spec = spec.replace("{" + name + "}", f"'{path.as_posix()}'")
        return spec

    def profiles_of(self, specs: Mapping[str, str]) -> dict[str, dict[Path, str]]:
        """The files of profiles that these specs name, given with their budgets, and that are not
        there; by calibration.
        """
        profiles: dict[str, dict[Path, str]] = {}
        for name, calibration in self.calibrations.items():
            for spec, budget in specs.items():
                path = self.profiles / calibration.file(name, budget)
                if f"'{path.as_posix()}'" in spec and not path.exists():
                    profiles.setdefault(name, {})[path] = budget
        return profiles

    def calibrate(self, specs: Mapping[str, str]) -> None:
        """Measures the profiles that these specs name, unless their files are there. Specs are
        given with their budgets.
        """
        for name, paths in self.profiles_of(specs).items():
            calibration = self.calibrations[name]
            self.say(f"profile {name}")
            if isinstance(calibration, PublishedProfile):
                calibration.make(self.load(), paths, self.data, self.model)
            else:
                calibration.measure(self.load(), paths, self.task, cut=self.small)

    def lacks(self, template: str, budget: str) -> Path | None:
        """The published file that a spec names, if it was not brought."""
        for name, one in self.calibrations.items():
            if isinstance(one, PublishedProfile) and "{" + name + "}" in template:
                made = self.profiles / one.file(name, budget)
                file = one.brought(self.data, self.model, budget)
                if not made.exists() and not file.is_file():
                    return file
        return None


def folder_of(task: str) -> str:
    """The folder with a benchmark's data."""
    kind = re.split(r"[_(=]", task)[0]
    return kind if kind in SHARED else task.split("(")[0]
