"""A benchmark in a folder: what it is, how it is read, and the task that its samples make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.data import Folder
from foveate.errors import InvalidInput
from foveate.eval.benchmarks.options import options
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.judge import Judge, Judged, unscored
from foveate.eval.sample import Fit, Metric, Sample, Task, distinct

Reader = Callable[..., Iterator[Sample]]
"""Takes a folder, and its options by name."""
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark's folder is read and scored. ``holds`` says what has to be in the folder.
    ``judged`` scores with a judge, ``metric`` without one; the rest is as with :class:`Task`.
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
    fit: Fit | None = None

    def task(
        self,
        folder: Path,
        judge: Judge | None = None,
        *,
        outside: bool = False,
        given: Mapping[str, Any] = NONE,
    ) -> Task:
        """The task of the samples in a folder, in the order of the release, by the options
        ``given``. What its files name has to lie in it, unless ``outside``.

        Raises:
            InvalidInput: no such folder.
            InvalidParameter: no such option, or a value that it does not take.
        """
        taken = options(self.name, self.read, given)
        if not folder.is_dir():
            raise InvalidInput(
                f"{self.name}: the folder {str(folder)!r} does not exist. It has to hold "
                f"{self.holds}."
            )

        def samples(count: int, seed: int) -> Iterator[Sample]:
            return islice(distinct(self.read(Folder(folder, outside), **taken.own)), count)

        return Task(
            f"{self.name}{taken.written}",
            self.summary,
            samples,
            partial(self.judged, judge) if judge and self.judged else self.metric,
            taken.general.get("longest", self.longest),
            self.reference,
            self.divisible,
            self.fit,
            taken.pixels,
            unjudged=self.judged is not None and not judge and "rules" not in taken.own.values(),
        )


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str,
    *,
    holds: str,
    metric: Metric = unscored,
    longest: int = 32,
    summary: str = "",
    judged: Judged | None = None,
    reference: bool = False,
    divisible: bool = True,
    hub: Hub | None = None,
    fit: Fit | None = None,
) -> Callable[[Reader], Reader]:
    """Registers the function that reads a benchmark's folder; what it is, says ``summary`` or the
    function's docstring. ``hub`` is where else it is read from.
    """
    holds = f"{holds}; or {hub.holds}" if hub else holds

    def register(read: Reader) -> Reader:
        what = summary or (read.__doc__ or "").strip().split("\n")[0]
        BENCHMARKS[name] = Benchmark(
            name, what, holds, read, metric, longest, judged, reference, divisible, fit
        )
        return read

    return register


def alternating(*several: Iterator[Sample]) -> Iterator[Sample]:
    """One of each in turn, until all are at their end."""
    waiting = list(several)
    while waiting:
        for one in tuple(waiting):
            if (sample := next(one, None)) is None:
                waiting.remove(one)
            else:
                yield sample
