"""Where and how parts are run: a model, the data, the results so far, and what is made small."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from foveate.eval.judge import Judge
from foveate.eval.model import Loaded
from foveate.eval.results import Results
from foveate.eval.sample import Task
from foveate.eval.tasks import find_task
from foveate.reproduce.calibrations import Calibration

SHARED = ("milebench", "longbench", "loogle", "needle")  # folders with the data of several tasks
ANSWER, PROMPT = 4, 256  # the most tokens of an answer and of a text, made small
NEEDLES = "needle_grid(lengths=120/240,depths=0/50/100)"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of an experiment, as it is run now.

    ``load`` gives the model, which is not needed where no row is missing. ``small`` is a stand-in:
    answers, texts and batches are cut.
    """

    model: str
    place: str
    data: Path
    results: Results
    limit: int
    seed: int
    small: bool
    load: Callable[[], Loaded]
    profiles: Path
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    judge: Judge | None = None
    outside: bool = False

    def task(self, name: str) -> Task:
        """The benchmark of that name in the data folder, called as it is asked for."""
        asked = NEEDLES if self.small and name.startswith("needle_grid") else name
        task = find_task(f"{asked}={self.data / folder_of(name)}", self.judge, self.outside)
        longest = min(task.longest, ANSWER) if self.small else task.longest
        return replace(task, name=name, longest=longest)

    def count(self, samples: int | None) -> int:
        """How many samples are asked, of as many as the paper asks."""
        return min(self.limit, samples) if samples else self.limit

    def spec(self, template: str, budget: str) -> str:
        """The spec at a budget, with the files of its profiles."""
        found = template.replace("{B}", budget)
        for name, calibration in self.calibrations.items():
            if "{" + name + "}" in found:
                path = self.profiles / calibration.file(name, budget)
                found = found.replace("{" + name + "}", f"'{path.as_posix()}'")
        return found

    def calibrated(self, spec: str, budget: str) -> None:
        """Measures the profiles that a spec names, unless their files are there."""
        for name, calibration in self.calibrations.items():
            path = self.profiles / calibration.file(name, budget)
            if path.as_posix() in spec and not path.exists():
                calibration.measure(self.load(), path, budget, self.task, small=self.small)


def folder_of(task: str) -> str:
    """The folder with a benchmark's data."""
    kind = re.split(r"[_(=]", task)[0]
    return kind if kind in SHARED else task.split("(")[0]
