"""Tasks of an evaluation: samples that are scored in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from typing import Any

from foveate.prompts.sample import Sample
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels


def distinct(samples: Iterator[Sample]) -> Iterator[Sample]:
    """The samples, of which those after the first of one name are NAME#2, NAME#3 and so on: results
    are found by name.
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
"""Takes a number of samples and a seed; what else, by name, are options of the task."""
Metric = Callable[[str, Sample], float | None]
Fit = Callable[[Any, Sample], Sample]
"""With the model's tokenizer, the sample at the length at which it is to be asked."""


@dataclass(frozen=True)
class Task:
    """Samples that are scored in one way.

    ``samples(count, seed)`` draws them: the same ones for the same arguments. ``metric`` scores a
    prediction from 0 to 1, unless it says otherwise; None where nothing can score it. ``longest``
    is the most tokens of an answer.

    ``reference``: the first answer is a text to compare with, and every cache is told its tokens
    (perplexity), ``told`` of them at most. ``divisible``: an answer without its first token can be
    scored. ``fit`` makes of a sample what the model is asked, where that depends on its tokens;
    ``pixels`` bound images. ``conversations`` name those in which the benchmark's authors asked
    families of models, where these are not the defaults (:mod:`foveate_lab.eval.conversations`).
    ``unjudged``: nothing scores the answers without a judge, and there is none.
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
    """Registers the function that draws a task's samples; its docstring says what it is."""

    def register(draw: Draw) -> Task:
        summary = (draw.__doc__ or "").strip().split("\n")[0]

        @wraps(draw)  # whose keyword-only parameters are the task's options
        def samples(count: int, seed: int, **options: Any) -> Iterator[Sample]:
            return distinct(draw(count, seed, **options))

        TASKS[name] = Task(name, summary, samples, metric, longest, reference, divisible)
        return TASKS[name]

    return register
