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
from foveate.eval.sample import Metric, Sample, Task

Reader = Callable[[Path], Iterator[Sample]]


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark's folder is read and scored. ``holds`` says what has to be in the folder."""

    name: str
    summary: str
    holds: str
    read: Reader
    metric: Metric
    longest: int

    def task(self, folder: Path) -> Task:
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

        return Task(self.name, self.summary, samples, self.metric, self.longest)


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str, *, holds: str, metric: Metric, longest: int = 32
) -> Callable[[Reader], Reader]:
    """Registers the function that reads a benchmark's folder; its docstring says what it is."""

    def register(read: Reader) -> Reader:
        summary = (read.__doc__ or "").strip().split("\n")[0]
        BENCHMARKS[name] = Benchmark(name, summary, holds, partial(_read, name, read), metric,
                                     longest)  # fmt: skip
        return read

    return register


def _read(name: str, read: Reader, folder: Path) -> Iterator[Sample]:
    """The samples, with a clear word where a record is not as the release has it."""
    try:
        yield from read(folder)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InvalidInput(
            f"{name}: a record in {str(folder)!r} is not as released ({error!r})."
        ) from error


def records(folder: Path, *patterns: str) -> Any:
    """What the first file holds that fits one of the patterns.

    Raises:
        InvalidInput: there is none, or it is no JSON.
    """
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    if not found:
        raise InvalidInput(f"{str(folder)!r} holds no {' or '.join(patterns)}.")
    try:
        return json.loads(found[0].read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{str(found[0])!r} is no JSON: {error}.") from error


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
