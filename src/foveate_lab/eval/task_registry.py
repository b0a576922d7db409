"""Registry of evaluation tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from typing import Any

from foveate.prompts.sample import Sample
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels


def distinct(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Rename samples whose name occurred before to NAME#2, NAME#3 and so on.

    Results are looked up by name.
    """
    names: set[str] = set()
    for sample in samples:
        name = sample.name
        for number in count(2):
            if name not in names:
                break
            name = f"{sample.name}#{number}"
        names.add(name)
        yield sample if name == sample.name else replace(sample, name=name)


Draw = Callable[..., Iterator[Sample]]
"""Function from a number of samples and a seed to samples; keywords are the task's options."""
Metric = Callable[[str, Sample], float | None]
Fit = Callable[[Any, Sample], Sample]
"""Function that fits a sample to a length, with the model's tokenizer."""


@dataclass(frozen=True)
class Task:
    """Samples with a common metric.

    ``samples(count, seed)`` draws them, reproducibly. ``metric`` scores a prediction, from 0 to 1
    unless documented otherwise; None if it cannot be scored. ``longest`` is the maximum number of
    answer tokens.

    ``reference``: the first answer is a reference text; its perplexity is measured under every
    cache, on at most ``reference_length`` tokens. ``divisible``: an answer without its first token
    can be scored. ``fit`` adapts a sample to the model's tokenizer; ``pixels`` bounds images.
    ``conversations`` are those in which the benchmark's authors asked families of models, where
    they are not the defaults (:mod:`foveate_lab.eval.conversations`).
    ``unjudged``: the answers need a judge and none is set.
    """

    name: str
    summary: str
    samples: Draw
    metric: Metric
    longest: int
    reference: bool = False
    divisible: bool = True
    fit: Fit | None = None
    pixels: Pixels = AS_THEY_ARE
    unjudged: bool = False
    reference_length: int | None = None
    conversations: Mapping[str, str] = field(default_factory=dict)


TASKS: dict[str, Task] = {}


def task(
    name: str,
    *,
    metric: Metric,
    longest: int = 16,
    reference: bool = False,
    divisible: bool = True,
) -> Callable[[Draw], Task]:
    """Register the function that draws a task's samples; its docstring becomes the summary."""

    def register(draw: Draw) -> Task:
        summary = (draw.__doc__ or "").strip().split("\n")[0]

        @wraps(draw)  # keyword-only parameters of ``draw`` are the task's options
        def samples(count: int, seed: int, **options: Any) -> Iterator[Sample]:
            return distinct(draw(count, seed, **options))

        TASKS[name] = Task(name, summary, samples, metric, longest, reference, divisible)
        return TASKS[name]

    return register
