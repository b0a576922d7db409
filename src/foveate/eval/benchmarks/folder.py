"""A benchmark in a folder: its records, its images, and the task that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from foveate.core.errors import InvalidInput
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.judge import Judge, Judged, unscored
from foveate.eval.sample import Metric, Sample, Task

Reader = Callable[[Path], Iterator[Sample]]


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark's folder is read and scored. ``holds`` says what has to be in the folder.
    ``judged`` scores with a judge; the rest is as with :class:`Task`.
    """

    name: str
    summary: str
    holds: str
    read: Reader
    metric: Metric
    longest: int
    judged: Judged | None = None
    reference: bool = False
    divisible: bool = True

    def task(self, folder: Path, judge: Judge | None = None) -> Task:
        """The task of the samples in a folder, in the order of the release.

        Raises:
            InvalidInput: no such folder.
        """
        if not folder.is_dir():
            raise InvalidInput(
                f"{self.name}: the folder {str(folder)!r} does not exist. It has to hold "
                f"{self.holds}."
            )

        def samples(count: int, seed: int) -> Iterator[Sample]:
            return islice(self.read(folder), count)

        metric = partial(self.judged, judge) if judge and self.judged else self.metric
        return Task(self.name, self.summary, samples, metric, self.longest, self.reference,
                    self.divisible)  # fmt: skip


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str, *, holds: str, metric: Metric = unscored, longest: int = 32, summary: str = "",
    judged: Judged | None = None, reference: bool = False, divisible: bool = True,
    hub: Hub | None = None,
) -> Callable[[Reader], Reader]:  # fmt: skip
    """Registers the function that reads a benchmark's folder; what it is, says ``summary`` or the
    function's docstring. ``hub`` is where else it is read from.
    """
    holds = f"{holds}; or {hub.holds}" if hub else holds

    def register(read: Reader) -> Reader:
        what = summary or (read.__doc__ or "").strip().split("\n")[0]
        BENCHMARKS[name] = Benchmark(name, what, holds, partial(_read, name, read), metric,
                                     longest, judged, reference, divisible)  # fmt: skip
        return read

    return register


def _read(name: str, read: Reader, folder: Path) -> Iterator[Sample]:
    """The samples, with a clear word where a record is not as the release has it."""
    try:
        yield from read(folder)
    except InvalidInput:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{name}: a record in {str(folder)!r} is not as released ({error!r})."
        ) from error


def records(folder: Path, *patterns: str) -> Any:
    """What the first file holds that fits one of the patterns: JSON, or a list of JSON from lines
    (.jsonl).

    Raises:
        InvalidInput: there is none, or it is no JSON.
    """
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    if not found:
        raise InvalidInput(f"{str(folder)!r} holds no {' or '.join(patterns)}.")
    try:
        text = found[0].read_text(encoding="utf-8")
        if found[0].suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{str(found[0])!r} is no JSON: {error}.") from error


def alternating(*several: Iterator[Sample]) -> Iterator[Sample]:
    """One of each in turn, until all are at their end."""
    waiting = list(several)
    while waiting:
        for one in tuple(waiting):
            if (sample := next(one, None)) is None:
                waiting.remove(one)
            else:
                yield sample


def picture(folder: Path, *names: str) -> Image.Image:
    """The first of these files, in RGB.

    Raises:
        InvalidInput: none of them is there, or it is no image.
    """
    for name in names:
        path = folder / name
        if path.is_file():
            try:
                with Image.open(path) as image:
                    return image.convert("RGB")
            except OSError as error:
                raise InvalidInput(f"{str(path)!r} cannot be read as an image: {error}.") from error
    raise InvalidInput(f"{str(folder)!r} holds no {' or '.join(names)}.")
