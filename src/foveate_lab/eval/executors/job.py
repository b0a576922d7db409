"""Samples under the policies that lack a row, and the executor that is this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from foveate.hf.model.devices import input_device
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.answering.row import Row
from foveate_lab.eval.answering.together import measured_together
from foveate_lab.eval.held import Key
from foveate_lab.eval.task_registry import Task


class Job(NamedTuple):
    """One sample, and the specs it is to be answered under beside the full cache.

    ``timed`` and what follows are as in :func:`foveate_lab.eval.answering.measure.measured`.
    ``place`` is the sample's among those that are drawn; its rows say it, where it is given. Those
    ``beside`` it, drawn after it, are answered together with it
    (:mod:`foveate_lab.eval.answering.together`).
    """

    task: Task
    sample: Sample
    specs: tuple[str, ...]
    timed: bool
    longest_prompt: int | None = None
    strict: bool = False
    raised: frozenset[str] = frozenset()
    place: int | None = None
    beside: tuple[Sample, ...] = ()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All that it asks."""
        return self.sample, *self.beside

    @property
    def keys(self) -> list[Key]:
        """Of all its rows."""
        specs = dict.fromkeys((FULL, *self.specs))
        return [(self.task.name, one.name, spec) for one in self.samples for spec in specs]


def lacking(job: Job, results: Container[object]) -> Job | None:
    """The job with the specs that have no answer yet; None where nothing lacks one. Samples that
    have theirs stay: who is beside whom does not depend on where a run was broken off.
    """
    missing = dict.fromkeys(spec for *of, spec in job.keys if (*of, spec) not in results)
    return job._replace(specs=tuple(s for s in missing if s != FULL)) if missing else None


Execute = Callable[[Iterable[Job]], Iterator[tuple[Job, Iterable[Row]]]]
"""Does jobs, each once, in any order; a job's rows come as they are there, or all at once."""

Executor = AbstractContextManager[Execute]
"""What is entered gets ready (a model, a cluster), and what is left gives everything back."""


def answered(loaded: Loaded, job: Job, protocol: Protocol) -> Iterator[Row]:
    """The rows of a job, with the model and the device that made them, and the seconds that each
    answer took, its share of those of a batch; the first one's are also those of reading the
    prompt.
    """
    made = {
        "model": loaded.name,
        "device": input_device(loaded.model).type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    names = [sample.name for sample in job.samples]
    began = time.perf_counter()
    for rows in _measured(loaded, job, protocol):
        spent = round((time.perf_counter() - began) / max(1, len(rows)), 4)
        for row in rows:
            place = {}
            if job.place is not None:
                place = {"place": job.place + names.index(row["sample"])}
            yield {**row, **place, **made, **({} if "error" in row else {"spent_s": spent})}
        began = time.perf_counter()


def _measured(loaded: Loaded, job: Job, protocol: Protocol) -> Iterator[list[Row]]:
    """The rows that were made at once, which is one where a sample is asked alone."""
    given: dict[str, Any] = {
        "longest_prompt": job.longest_prompt,
        "strict": job.strict,
        "raised": job.raised,
    }
    if job.beside:
        yield from measured_together(loaded, job.task, job.samples, job.specs, protocol, **given)
        return
    for row in measured(
        loaded, job.task, job.sample, job.specs, protocol, timed=job.timed, **given
    ):
        yield [row]


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
