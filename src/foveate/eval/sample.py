"""What a model is asked in an evaluation, and what shows the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from PIL import Image

Number = int | float
Box = tuple[Number, Number, Number, Number]


class Span(NamedTuple):
    """A text, and where it stands: in a box (left, top, right, bottom, in pixels) on an image, or,
    without an image, in the prompt itself.
    """

    text: str
    image: int | None = None
    box: Box = (0, 0, 0, 0)


@dataclass(frozen=True)
class Sample:
    """One question.

    ``context`` is text that stands before the question and is compressed with the images where a
    cache serves several questions. Any of the ``answers`` is right. ``evidence`` are the spans that
    the answer is read from. ``facts`` are what a task's metric needs beside.
    """

    name: str
    question: str
    answers: tuple[str, ...]
    images: tuple[Image.Image, ...] = ()
    context: str = ""
    evidence: tuple[Span, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Context and question."""
        return f"{self.context}\n\n{self.question}" if self.context else self.question


Metric = Callable[[str, Sample], float]


@dataclass(frozen=True)
class Task:
    """Samples that are scored in one way.

    ``samples(count, seed)`` draws them: the same ones for the same arguments. ``metric`` scores a
    prediction from 0 to 1. ``longest`` is the most tokens of an answer.
    """

    name: str
    summary: str
    samples: Callable[[int, int], Iterator[Sample]]
    metric: Metric
    longest: int


TASKS: dict[str, Task] = {}


def task(
    name: str, *, metric: Metric, longest: int = 16
) -> Callable[[Callable[[int, int], Iterator[Sample]]], Task]:
    """Registers the function that draws a task's samples; its docstring says what it is."""

    def register(draw: Callable[[int, int], Iterator[Sample]]) -> Task:
        summary = (draw.__doc__ or "").strip().split("\n")[0]
        TASKS[name] = Task(name, summary, draw, metric, longest)
        return TASKS[name]

    return register
