"""A question to a model with its images, its right answers, and the spans that show them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
