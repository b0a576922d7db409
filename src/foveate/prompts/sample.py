"""What a model is asked in an evaluation, and what shows the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import count
from typing import Any, NamedTuple

from PIL import Image

from foveate.data import VideoFile

Number = int | float
Box = tuple[Number, Number, Number, Number]
PLACE = "\ufffc"  # where in a text an image stands; without any, all images stand before it


class Span(NamedTuple):
    """A text, and where it stands: in a box (left, top, right, bottom, in pixels) on an image, or,
    without an image, in the prompt itself.
    """

    text: str
    image: int | None = None
    box: Box = (0, 0, 0, 0)


class Pixels(NamedTuple):
    """The fewest and the most pixels that a processor makes of an image; None as it has it."""

    least: int | None = None
    most: int | None = None


AS_THEY_ARE = Pixels()


@dataclass(frozen=True)
class Sample:
    """One question.

    ``videos`` stand before the images. ``context`` is text that stands before the question and is
    compressed with the images where a cache serves several questions; ``between`` joins the two.
    Either may say with :data:`PLACE` where the images stand. ``plain`` text is read without the
    model's chat template. Any of the ``answers`` is right. ``evidence`` are the spans that the
    answer is read from. ``facts`` are what a task's metric needs beside. ``labels`` say what
    kind of sample it is, in words, numbers and lists of words: they go into its rows, and reports
    are split by them.
    """

    name: str
    question: str
    answers: tuple[str, ...]
    images: tuple[Image.Image, ...] = ()
    videos: tuple[VideoFile, ...] = ()
    context: str = ""
    evidence: tuple[Span, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    between: str = "\n\n"
    plain: bool = False

    @property
    def text(self) -> str:
        """Context and question."""
        return f"{self.context}{self.between}{self.question}" if self.context else self.question

    @cached_property
    def digest(self) -> str:
        """Of the question, its answers and what it shows: the same only where the same is asked."""
        digest = hashlib.sha256(repr((self.context, self.between, self.question)).encode())
        digest.update(repr((self.answers, self.plain)).encode())
        for image in self.images:
            digest.update(repr((image.mode, image.size)).encode() + image.tobytes())
        for video in self.videos:
            digest.update(repr(video.clip.times.tolist()).encode() + video.clip.frames.tobytes())
        return digest.hexdigest()[:16]


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
    ``pixels`` bound images.
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
