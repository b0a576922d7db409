"""Size of a prompt and its answer, as far as memory depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from foveate.defaults import AttentionName
from foveate.errors import InvalidInput


class Unknown(Exception):
    """Error for a size that cannot be known beforehand, with the reason."""


Size = tuple[int, int]
"""Width and height, in pixels."""

MOST = 2**24
"""Limit of tokens over all rows, because their ids are real tensors."""
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Request:
    """Size of a batch of equal rows.

    Attributes:
        images: images of each row.
        frames: frames of each row's video; 0 without one.
        seconds: length of the video, which some processors write beside its frames.
        size: size of every image and frame, before the processor; None without any.
        text: text tokens of each row, template included.
        answer: tokens of each row's answer.
        batch: rows.
        attention: attention implementation of transformers; None is the model's own choice.
        chunk: tokens of the prompt that pass through the decoder at once; None is all of them.
    """

    images: int = 0
    frames: int = 0
    seconds: float = 0.0
    size: Size | None = None
    text: int = 256
    answer: int = 256
    batch: int = 1
    attention: AttentionName | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("text", "answer", "batch"):
            _check_least(name, getattr(self, name), 1)
        for name in ("images", "frames"):
            _check_least(name, getattr(self, name), 0)
        if self.chunk is not None:
            _check_least("chunk", self.chunk, 1)
        if self.image_count and (self.size is None or min(self.size) < 1):
            raise InvalidInput(
                f"{self.image_count} image(s) or frame(s) of size {self.size}: give their width "
                "and height in pixels, such as --size 1436x717, or size=(1436, 717) in Python."
            )
        self.check_between(self.images)
        check_tokens(self.batch, self.text + self.image_count)

    def check_between(self, count: int) -> None:
        """Raise InvalidInput if there are too few text tokens to separate so many images."""
        if self.text <= count:
            raise InvalidInput(
                f"text={self.text} beside {count} image(s) or frame(s) read as images: give "
                f"{count + 1} or more, as a token of text stands between two of them, at least."
            )

    @property
    def image_count(self) -> int:
        """Number of images and frames of a row."""
        return self.images + self.frames


def check_tokens(rows: int, tokens: int) -> None:
    """Raise InvalidInput if ``rows`` rows of ``tokens`` tokens exceed the limit."""
    if rows * tokens > MOST:
        raise InvalidInput(
            f"batch={rows} of {tokens:,} tokens or more: at most {MOST:,} tokens are counted. Give "
            "less text, fewer images or frames, or fewer rows."
        )


def _check_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name}={value!r}: give a whole number from {least} on.")


def size_of(text: str) -> Size:
    """Parse a size such as "1436x717".

    Raises:
        InvalidInput: another format.
    """
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text.strip().lower())
    if not match:
        raise InvalidInput(f"size {text!r}: give width and height in pixels, such as 1436x717.")
    return int(match[1]), int(match[2])


def seconds_of(text: str) -> float:
    """Parse a length such as "1h", "90s", "1.5h", "12min" or a number of seconds.

    Raises:
        InvalidInput: another format.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip().lower())
    if not match or float(match[1]) == 0:
        raise InvalidInput(f"video {text!r}: give how long it is, such as 1h, 12min or 90s.")
    return float(match[1]) * _SECONDS[match[2] or ""]


def frames_of(seconds: float, fps: float) -> int:
    """Return the number of frames that :func:`foveate.read_video` takes of a video, including the
    first and the last.
    """
    if not fps > 0:
        raise InvalidInput(f"fps={fps}: give a number of frames a second above 0.")
    return int(seconds * fps) + 1
