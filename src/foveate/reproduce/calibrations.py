"""Profiles that an experiment measures before it compares: heads' scores, layers' ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from foveate.backends.hf.calibrate import calibrate
from foveate.backends.hf.heads import calibrate_heads
from foveate.core.heads import HEAD_READINGS
from foveate.errors import InvalidInput
from foveate.eval.head_samples import generated, shown
from foveate.eval.model import Loaded
from foveate.eval.prompt import read
from foveate.eval.sample import Sample, Task
from foveate.eval.tasks import find_task

SMALL = 4  # samples of a stand-in


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How a profile is measured: which method's (its spec, or its name where a budget is all it
    needs), on how many samples of which benchmark, drawn with a seed from its first ``among``;
    scores of heads on drawn documents, or by a model that reads on lines hidden in a text.
    ``words`` bound the length of the prompts that are drawn.
    """

    method: str
    task: str = ""
    samples: int = 10
    among: int = 1000
    words: tuple[int | float, int | float] = (0, inf)
    at_a_budget: bool = False
    seed: int = 0

    def file(self, name: str, budget: str) -> str:
        """What its file is called."""
        at = "-" + budget.replace("%", "pct") if self.at_a_budget else ""
        return f"{name}{at}.json"

    def measure(
        self,
        loaded: Loaded,
        path: Path,
        budget: str,
        find: Callable[[str], Task],
        *,
        small: bool,
    ) -> None:
        """Writes the profile.

        Raises:
            InvalidInput: the benchmark holds no sample whose prompt is as long as asked.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        progress, count = path.with_name(f"{path.name}.part"), SMALL if small else self.samples
        if self.method in HEAD_READINGS:
            asked = (
                generated(self.method, count)
                if loaded.sees
                else find_task("text_needle").samples(count, self.seed)
            )
            samples = (shown(loaded, one) for one in asked)
            calibrate_heads(
                loaded.model, self.method, samples, loaded.tokenizer, progress=progress
            ).save(path)
            return
        spec = f"{self.method}:budget={budget}" if self.at_a_budget else self.method
        inputs = self._inputs(loaded, find(self.task), count)
        calibrate(loaded.model, spec, inputs, progress=progress).save(path)

    def _inputs(self, loaded: Loaded, task: Task, count: int) -> Iterator[dict[str, Any]]:
        fitting = list(islice(filter(self._fits, task.samples(self.among, 0)), self.among))
        if not fitting:
            raise InvalidInput(
                f"{task.name} has no prompt of {self.words[0]:g} to {self.words[1]:g} words to "
                "measure a profile on. Add some to its folder."
            )
        for sample in Random(self.seed).sample(fitting, min(count, len(fitting))):
            yield read(loaded, sample.text, list(sample.images), plain=sample.plain).inputs

    def _fits(self, sample: Sample) -> bool:
        low, high = self.words
        return low < len(sample.text.split()) <= high
