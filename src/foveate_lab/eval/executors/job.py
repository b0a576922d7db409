"""Jobs of samples and specs, and the executor in this process."""

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
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.eval.task_registry import Task


class Job(NamedTuple):
    """Sample with the specs to answer it under, in addition to the full cache.

    ``timed`` and the fields after it are those of
    :func:`foveate_lab.eval.answering.measure.measured`. ``number`` is the sample's index among
    those drawn; its rows record it unless it is None. Samples ``beside`` it, drawn after it, are
    answered in the same batch (:mod:`foveate_lab.eval.answering.together`).
    """

    task: Task
    sample: Sample
    specs: tuple[str, ...]
    timed: bool
    longest_prompt: int | None = None
    strict: bool = False
    raised: frozenset[str] = frozenset()
    number: int | None = None
    beside: tuple[Sample, ...] = ()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All samples of the job."""
        return self.sample, *self.beside

    @property
    def keys(self) -> list[Key]:
        """Keys of all its rows."""
        specs = dict.fromkeys((FULL, *self.specs))
        return [(self.task.name, sample.name, spec) for sample in self.samples for spec in specs]


def lacking(job: Job, results: Container[object]) -> Job | None:
    """Return the job with only the specs that lack an answer; None if none does.

    All samples stay, so that the composition of a batch does not depend on an interruption.
    """
    missing = dict.fromkeys(spec for *of, spec in job.keys if (*of, spec) not in results)
    return job._replace(specs=tuple(s for s in missing if s != FULL)) if missing else None


Execute = Callable[[Iterable[Job]], Iterator[tuple[Job, Iterable[Row]]]]
"""Function that does each job once, in any order, and yields its rows as they arrive."""

Executor = AbstractContextManager[Execute]
"""Context that loads what it needs (a model, a cluster) on entry and releases it on exit."""


def answered(loaded: Loaded, job: Job, protocol: Protocol) -> Iterator[Row]:
    """Yield the rows of a job, with model, device and seconds per answer.

    In a batch each row gets an equal share of the seconds; the first rows include the prefill.
    """
    origin = {
        "model": loaded.name,
        "device": input_device(loaded.model).type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    names = [sample.name for sample in job.samples]
    began = time.perf_counter()
    for rows in _measured(loaded, job, protocol):
        spent = round((time.perf_counter() - began) / max(1, len(rows)), 4)
        for row in rows:
            index = {}
            if job.number is not None:
                index = {"place": job.number + names.index(row["sample"])}
            yield {**row, **index, **origin, **({} if "error" in row else {"spent_s": spent})}
        began = time.perf_counter()


def _measured(loaded: Loaded, job: Job, protocol: Protocol) -> Iterator[list[Row]]:
    """Yield rows in groups that were computed together; a sample alone gives one row each."""
    settings: dict[str, Any] = {
        "longest_prompt": job.longest_prompt,
        "strict": job.strict,
        "raised": job.raised,
    }
    if job.beside:
        yield from measured_together(loaded, job.task, job.samples, job.specs, protocol, **settings)
        return
    for row in measured(
        loaded, job.task, job.sample, job.specs, protocol, timed=job.timed, **settings
    ):
        yield [row]


class Local(AbstractContextManager[Execute]):
    """Executor in this process; ``load`` returns the model on entry."""

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
