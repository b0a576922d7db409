"""Profiles that an experiment measures before it compares: heads' scores, layers' ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from foveate.cli.calibrate.prompts import generated, locate_spans
from foveate.errors import InvalidInput
from foveate.hf.measuring.calibrate import calibrate_each
from foveate.hf.measuring.heads import calibrate_heads
from foveate.loading.model import Loaded
from foveate.policies.heads import HEAD_READINGS, Shown
from foveate.profiles.profile import Profile
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce import stand_in_sizes as sizes


@dataclass(frozen=True, kw_only=True)
class CalibrationRun:
    """Settings of a profile's measurement: the method (its spec, or its name where it needs only a
    budget), and how many samples of which benchmark, drawn with a seed from its first ``among``.
    Profiles of heads use drawn documents, or lines hidden in a text for a model without images.
    Prompts of more than ``longest_prompt`` tokens lose their middle.
    """

    method: str
    task: str = ""
    samples: int = 10
    among: int = 1000
    longest_prompt: int | None = None
    at_a_budget: bool = False
    seed: int = 0

    def file(self, name: str, budget: str) -> str:
        """Return the name of the profile's file."""
        at = "-" + budget.replace("%", "pct") if self.at_a_budget else ""
        return f"{name}{at}.json"

    def measure(
        self,
        loaded: Loaded,
        paths: Mapping[Path, str],
        find: Callable[[str], Task],
        *,
        cut: bool,
    ) -> None:
        """Measure the profiles of these files in one pass and save them, each at its budget.

        ``cut`` is for a stand-in: few samples, and short ones.

        Raises:
            InvalidInput: the benchmark holds no sample.
        """
        first = next(iter(paths))
        first.parent.mkdir(parents=True, exist_ok=True)
        progress = first.with_name(f"{first.name}.{len(paths)}.part")
        count = min(sizes.PROFILE, self.samples) if cut else self.samples
        profiles: list[Profile]
        if self.method in HEAD_READINGS:
            heads = self._heads(loaded, count)
            model, words = loaded.model, loaded.tokenizer
            profiles = [calibrate_heads(model, self.method, heads, words, progress=progress)]
        else:
            inputs = self._inputs(loaded, find(self.task), count, sizes.PROMPT if cut else None)
            specs = [self._spec(budget) for budget in paths.values()]
            profiles = calibrate_each(loaded.model, specs, inputs, progress=progress)
        for path, profile in zip(paths, profiles, strict=True):
            profile.save(path)

    def _spec(self, budget: str) -> str:
        return f"{self.method}:budget={budget}" if self.at_a_budget else self.method

    def _heads(self, loaded: Loaded, count: int) -> Iterator[Shown]:
        if loaded.sees:
            samples = generated(self.method, count)
        else:
            samples = find_task("text_needle").samples(count, self.seed)
        return (locate_spans(loaded, sample) for sample in samples)

    def _inputs(
        self, loaded: Loaded, task: Task, count: int, limit: int | None
    ) -> Iterator[dict[str, Any]]:
        samples = list(task.samples(self.among, self.seed))
        if not samples:
            raise InvalidInput(
                f"{task.name} has no prompt to measure a profile on. Add some to its folder."
            )
        longest = limit or self.longest_prompt
        for sample in Random(self.seed).sample(samples, min(count, len(samples))):
            yield read_prompt(
                loaded, task, sample, "query-aware", timed=False, longest_prompt=longest
            ).prompt.inputs
