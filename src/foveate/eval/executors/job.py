"""One sample under the policies that lack a row, and the executor that is this process."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from foveate.eval import hardware
from foveate.eval.held import Key
from foveate.eval.measure import measured
from foveate.eval.model import Loaded
from foveate.eval.reading import FULL, Protocol
from foveate.eval.row import Row
from foveate.eval.sample import Sample, Task


class Job(NamedTuple):
    """One sample, and the specs it is to be answered under beside the full cache.

    ``timed`` and what follows are as in :func:`foveate.eval.measure.measured`. ``place`` is the
    sample's among those that are drawn; its rows say it, where it is given.
    """

    task: Task
    sample: Sample
    specs: tuple[str, ...]
    timed: bool
    longest_prompt: int | None = None
    strict: bool = False
    raised: frozenset[str] = frozenset()
    place: int | None = None

    @property
    def keys(self) -> list[Key]:
        """Of all its rows."""
        specs = dict.fromkeys((FULL, *self.specs))
        return [(self.task.name, self.sample.name, spec) for spec in specs]


def lacking(job: Job, results: Container[object]) -> Job | None:
    """The job with the specs that have no answer yet; None where nothing lacks one."""
    missing = [key for key in job.keys if key not in results]
    return job._replace(specs=tuple(s for _, _, s in missing if s != FULL)) if missing else None


Execute = Callable[[Iterable[Job]], Iterator[tuple[Job, Iterable[Row]]]]
"""Does jobs, each once, in any order; a job's rows come as they are there, or all at once."""

Executor = AbstractContextManager[Execute]
"""What is entered gets ready (a model, a cluster), and what is left gives everything back."""


def answered(loaded: Loaded, job: Job, protocol: Protocol) -> Iterator[Row]:
    """The rows of a job, with the model and the device that made them, and the seconds that each
    answer took; the first one's are also those of reading the prompt.
    """
    where = {
        **({} if job.place is None else {"place": job.place}),
        "model": loaded.name,
        "device": loaded.model.device.type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    rows = measured(
        loaded,
        job.task,
        job.sample,
        job.specs,
        protocol,
        timed=job.timed,
        longest_prompt=job.longest_prompt,
        strict=job.strict,
        raised=job.raised,
    )
    began = time.perf_counter()
    for row in rows:
        spent = {} if "error" in row else {"spent_s": round(time.perf_counter() - began, 4)}
        yield {**row, **where, **spent}
        began = time.perf_counter()


def versions() -> dict[str, Any]:
    """What results depend on, beside the configuration."""
    names = ("foveate", "torch", "transformers")
    return {"python": platform.python_version(), **hardware.versions(*names)}


class Local(AbstractContextManager[Execute]):
    """This process; ``load`` gives the model when it is entered."""

    def __init__(self, load: Callable[[], Loaded], protocol: Protocol):
        self.load, self.protocol = load, protocol

    def __enter__(self) -> Execute:
        self._loaded = self.load()
        return self._execute

    def __exit__(self, *error: Any) -> None:
        del self._loaded

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Iterator[Row]]]:
        for job in jobs:
            yield job, answered(self._loaded, job, self.protocol)
