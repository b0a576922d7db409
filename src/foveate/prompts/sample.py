"""Samples: questions with their images, right answers and evidence."""

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
PLACE = "\ufffc"  # placeholder of an image in a text; without any, all images come first


class Span(NamedTuple):
    """Text and its location: a box on an image, or without an image the prompt itself.

    ``image`` is the index of the image, ``box`` (left, top, right, bottom) is in its pixels.
    """

    text: str
    image: int | None = None
    box: Box = (0, 0, 0, 0)


@dataclass(frozen=True)
class Sample:
    """Question of a task, with its images, videos and right answers.

    ``videos`` come before the images. ``context`` is text before the question; it is compressed
    with the images if one cache serves several questions. ``between`` joins the two. Both texts may
    have :data:`PLACE` where images belong. ``plain`` text is read without a chat template. Any of
    the ``answers`` is right. ``evidence`` are the spans that show the answer. ``facts`` are further
    inputs of a task's metric. ``labels`` (texts, numbers and lists of texts) classify the sample:
    its rows contain them, and reports are split by them.
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
        """Text of the context and the question."""
        return f"{self.context}{self.between}{self.question}" if self.context else self.question

    @cached_property
    def digest(self) -> str:
        """Hash of the question, its answers, images and videos; 16 hexadecimal digits."""
        digest = hashlib.sha256(repr((self.context, self.between, self.question)).encode())
        digest.update(repr((self.answers, self.plain)).encode())
        for image in self.images:
            digest.update(repr((image.mode, image.size)).encode() + image.tobytes())
        for video in self.videos:
            digest.update(repr(video.clip.times.tolist()).encode() + video.clip.frames.tobytes())
        return digest.hexdigest()[:16]
