"""A Ray cluster: each worker loads the model once, and takes one sample after the other.

Samples are drawn, and rows are written, where the run was started; workers need the model at the
place that was named, and nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from foveate.core.errors import ClusterFailed, FoveateError, MissingPackage
from foveate.eval.executors.job import Execute, Job, answered, versions
from foveate.eval.model import load
from foveate.eval.reading import Protocol
from foveate.eval.row import Row
from foveate.eval.sample import Sample

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise MissingPackage("--executor ray", "ray", "ray") from error

LOST = (
    exceptions.RayActorError, exceptions.NodeDiedError, exceptions.ObjectLostError,
    exceptions.OutOfMemoryError, exceptions.WorkerCrashedError,
)  # fmt: skip
"""A worker that is gone, or an answer that went with its machine: someone else does the job."""

TRIES = 3  # times that one sample may lose its worker
STORE = 256 * 2**20  # bytes of shared memory of a cluster that is started here; images pass through
AT_HAND = "local"  # as RAY_ADDRESS: a cluster of this machine alone, also where another one runs


class Share(NamedTuple):
    """How many workers, and what each of them gets."""

    workers: int
    cpus: int
    gpus: int


def share(machines: Sequence[Mapping[str, int | float]], workers: int | None) -> Share:
    """A GPU each if there are any, otherwise as many CPUs each as fit; by default one worker for
    each GPU, or for each machine. ``machines`` have Ray's resources, "CPU" and "GPU".

    Raises:
        ClusterFailed: there is not room for so many.
    """
    gpus, cpus = ([int(machine.get(kind, 0)) for machine in machines] for kind in ("GPU", "CPU"))
    if sum(gpus):
        wanted, room = workers or sum(gpus), sum(gpus)
        found = Share(wanted, 1, 1)
    else:
        wanted, room = workers or sum(count > 0 for count in cpus), sum(cpus)
        sizes = range(max(cpus, default=0), 0, -1)
        each = next((n for n in sizes if sum(count // n for count in cpus) >= wanted), 0)
        found = Share(wanted, each, 0)
    if not 0 < wanted <= room:
        kind = "GPU" if sum(gpus) else "CPU"
        raise ClusterFailed(
            f"the cluster has {room} {kind}(s), not room for {max(1, wanted)} workers. Give fewer "
            "--workers, or add machines to it."
        )
    return found


class RayCluster(AbstractContextManager[Execute]):
    """Connects when it is entered: to the cluster that this process is connected to already, to the
    one that RAY_ADDRESS names or that runs on this machine, or to one that it starts here.
    """

    def __init__(self, model: str, protocol: Protocol, workers: int | None):
        self.model, self.protocol, self.workers = model, protocol, workers
        self._flying: dict[Any, tuple[Any, Job | None]] = {}  # a job, or a worker that gets ready
        self._idle: list[Any] = []
        self._lost: Counter[tuple[str, str] | None] = Counter()

    def __enter__(self) -> Execute:
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            _connect(self.workers)
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._share = share(alive, self.workers)
        return self._execute

    def __exit__(self, *error: Any) -> None:
        if self._connected_here:
            ray.shutdown()  # and with it the workers
            return
        for worker in [*self._idle, *(worker for worker, _ in self._flying.values())]:
            ray.kill(worker)

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Row]]]:
        again: list[Job] = []  # whose worker was lost
        left = iter(jobs)
        for _ in range(self._share.workers):
            self._hire()
        while True:
            while self._idle and (job := again.pop() if again else next(left, None)):
                self._hand(self._idle.pop(), job)
            if self._idle and not any(job for _, job in self._flying.values()):
                return
            (done, *_), _ = ray.wait(list(self._flying), num_returns=1)
            worker, job = self._flying.pop(done)
            try:
                came = _fetched(done)
            except LOST as error:
                self._count_lost(job, error)
                again += [job] if job else []
                if not self._idle:
                    self._hire()
                continue
            self._idle.append(worker)
            if job:
                yield job, came
            else:
                _check(came)
                self._lost[None] = 0

    def _hire(self) -> None:
        """One more worker; it is given jobs when it has loaded the model."""
        place = str(Path(self.model).expanduser().resolve()) if _is_folder(self.model) else ""
        options = {"num_cpus": self._share.cpus, "num_gpus": self._share.gpus}
        hired = ray.remote(Worker).options(**options).remote(self.model, place, self.protocol)
        self._flying[hired.ready.remote()] = hired, None

    def _hand(self, worker: Any, job: Job) -> None:
        """What draws a task's samples stays here: a function of anywhere, and of no use there."""
        sent = job._replace(task=replace(job.task, samples=_drawn_elsewhere))
        self._flying[worker.answer.remote(sent)] = worker, job

    def _count_lost(self, job: Job | None, error: Exception) -> None:
        key = (job.task.name, job.sample.name) if job else None
        self._lost[key] += 1
        if self._lost[key] == TRIES:
            what = f"sample {key[1]!r} of {key[0]}" if key else "loading the model"
            raise ClusterFailed(
                f"{what} lost its worker {TRIES} times; the last one: {_first(error)} Where memory "
                "is short, give fewer --workers; what is answered is kept, go on with --resume."
            ) from error


class Worker:
    """What runs on the cluster. ``place`` is where the model is, if that is a folder."""

    def __init__(self, model: str, place: str, protocol: Protocol):
        self.model, self.place, self.protocol = model, place, protocol

    def ready(self) -> dict[str, Any]:
        """Loads the model; the versions that it runs on."""
        loaded = load(self.place or self.model)
        self.loaded = replace(loaded, name=self.model) if self.place else loaded
        return versions()

    def answer(self, job: Job) -> list[Row]:
        """The rows of a job."""
        return list(answered(self.loaded, job, self.protocol))


def _connect(workers: int | None) -> None:
    """Nothing is reported to anyone by a cluster that is started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS")
    if address != AT_HAND:
        try:
            ray.init("auto", log_to_driver=False, logging_level="ERROR")
            return
        except ConnectionError as error:
            if address:
                raise ClusterFailed(
                    f"RAY_ADDRESS={address!r}: no Ray cluster answers there ({_first(error)}). "
                    "Start it, or unset the variable to use this machine alone."
                ) from error
    cpus = max(os.cpu_count() or 1, workers or 1)
    ray.init(AT_HAND, num_cpus=cpus, object_store_memory=STORE, include_dashboard=False,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip


def _fetched(done: Any) -> Any:
    """What a worker returned; its errors as they would have been raised here."""
    try:
        return ray.get(done)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, FoveateError):
            raise error.cause from None
        raise


def _check(theirs: Mapping[str, Any]) -> None:
    """All machines run the same versions, which are those that the results name."""
    if theirs != (ours := versions()):
        differing = {name: (theirs.get(name), ours[name]) for name in ours
                     if theirs.get(name) != ours[name]}  # fmt: skip
        raise ClusterFailed(
            f"a worker runs other versions than this process (theirs, ours): {differing}. Install "
            "the same on all machines."
        )


def _drawn_elsewhere(count: int, seed: int) -> Iterator[Sample]:
    raise NotImplementedError


def _is_folder(name: str) -> bool:
    return Path(name).expanduser().is_dir()


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
