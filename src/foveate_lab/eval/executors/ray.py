"""A Ray cluster: each worker loads the model once, and takes one sample after the other.

Samples are drawn, and rows are written, where the run was started; workers need the model at the
place that was named, and nothing else.

``ray.util.ActorPool`` would not say which sample went with a lost worker, nor whether any worker
has started; workers that Ray restarts itself, as ``map_batches`` has them, hide both as well.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveate.errors import ClusterFailed, FoveateError, InvalidParameter, MissingPackage
from foveate.loading.hardware import versions_of_results
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.row import Row
from foveate_lab.eval.executors.job import Execute, Job, answered
from foveate_lab.eval.executors.share import share
from foveate_lab.eval.padding import load

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise MissingPackage("--executor ray", "ray", "ray") from error

_log = logging.getLogger(__name__)
LOST = (
    exceptions.RayActorError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
)
"""A worker that is gone, or an answer that went with its machine: someone else does the job."""

PATIENCE = "FOVEATE_RAY_PATIENCE"
"""Seconds that all workers may be without a machine before the run ends; ten minutes if not set."""
TICK = 10.0  # seconds after which a run that waits looks whether it should
TRIES = 3  # times that one sample may lose its worker
STORE = 256 * 2**20  # bytes of shared memory of a cluster that is started here; images pass through
AT_HAND = "local"  # as RAY_ADDRESS: a cluster of this machine alone, also where another one runs


class RayCluster(AbstractContextManager[Execute]):
    """Connects when it is entered: to the cluster that this process is connected to already, to the
    one that RAY_ADDRESS names or that runs on this machine, or to one that it starts here.
    """

    def __init__(
        self,
        model: str,
        protocol: Protocol,
        workers: int | None,
        trust_remote_code: bool = False,
        pad_images: bool = False,
    ):
        self.model, self.protocol, self.workers = model, protocol, workers
        self.trusted, self.pads = trust_remote_code, pad_images
        # what each worker does: a job, or none while it loads the model, or finds its machine
        self._flying: dict[Any, tuple[Any, Job | None]] = {}
        self._unplaced: dict[Any, Any] = {}  # workers that no machine has room for yet
        self._idle: list[Any] = []
        self._lost: Counter[tuple[str, str] | None] = Counter()

    def __enter__(self) -> Execute:
        self._patience = _patience()
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
        at_work = [worker for worker, _ in self._flying.values()]
        for worker in [*self._idle, *at_work, *self._unplaced.values()]:
            ray.kill(worker)

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Row]]]:
        retried: list[Job] = []  # whose worker was lost
        left = iter(jobs)
        at_hand = len(self._idle) + len(self._flying) + len(self._unplaced)
        for _ in range(at_hand, self._share.workers):
            self._hire()
        while True:
            while self._idle and (job := retried.pop() if retried else next(left, None)):
                self._hand(self._idle.pop(), job)
            if self._idle and not any(job for _, job in self._flying.values()):
                return
            worker, job, done = self._next()
            try:
                came = _fetched(done)
            except LOST as error:
                self._count_lost(job, error)
                retried += [job] if job else []
                if not self._idle:
                    self._hire()
                continue
            self._idle.append(worker)
            if job:
                yield job, came
            else:
                _check(came)
                self._lost[None] = 0

    def _next(self) -> tuple[Any, Job | None, Any]:
        """A worker that has done something, what that was, and what came of it."""
        waited = 0.0
        while True:
            tick = min(TICK, self._patience)
            ended, _ = ray.wait([*self._flying, *self._unplaced], num_returns=1, timeout=tick)
            for one in ended:
                if one in self._flying:
                    return *self._flying.pop(one), one
                hired = self._unplaced.pop(one)
                self._flying[hired.ready.remote()] = hired, None
            waited = waited + tick if not ended and not self._flying else 0.0
            if waited:
                self._wait(waited)

    def _wait(self, waited: float) -> None:
        """Says what is waited for, and for how long that is done."""
        each, machines = self._share, sum(bool(node["Alive"]) for node in ray.nodes())
        what = (
            f"none of the cluster's {machines} machine(s) has started a worker, which takes "
            f"{each.cpus} free CPU(s) and {each.gpus} GPU(s)"
        )
        if waited >= self._patience:
            raise ClusterFailed(
                f"{what}, for {waited:.0f} seconds. What is answered is kept: add machines, and go "
                f"on with --resume. {PATIENCE} sets the seconds."
            )
        _log.warning(
            "Waiting: %s. The run ends after %.0f seconds of that (%s); it has been %.0f.",
            what,
            self._patience,
            PATIENCE,
            waited,
        )

    def _hire(self) -> None:
        """One more worker; it is given jobs when it has loaded the model."""
        place = str(Path(self.model).expanduser().resolve()) if _is_folder(self.model) else ""
        options = {"num_cpus": self._share.cpus, "num_gpus": self._share.gpus}
        terms = (self.model, place, self.protocol, self.trusted, self.pads)
        hired = ray.remote(Worker).options(**options).remote(*terms)
        self._unplaced[hired.placed.remote()] = hired

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

    def __init__(
        self,
        model: str,
        place: str,
        protocol: Protocol,
        trust_remote_code: bool = False,
        pad_images: bool = False,
    ):
        self.model, self.place, self.protocol = model, place, protocol
        self.trusted, self.pads = trust_remote_code, pad_images

    def placed(self) -> None:
        """Answers as soon as a machine has room for it."""

    def ready(self) -> dict[str, Any]:
        """Loads the model; the versions that it runs on."""
        loaded = load(self.place or self.model, self.trusted, pad_images=self.pads)
        self.loaded = replace(loaded, name=self.model) if self.place else loaded
        return versions_of_results()

    def answer(self, job: Job) -> list[Row]:
        """The rows of a job."""
        return list(answered(self.loaded, job, self.protocol))


def _patience() -> float:
    said = os.environ.get(PATIENCE, "600")
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidParameter(f"{PATIENCE}={said!r}: give a number of seconds above 0.")
    return seconds


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
    ray.init(
        AT_HAND,
        num_cpus=cpus,
        object_store_memory=STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


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
    if theirs != (ours := versions_of_results()):
        differing = {
            name: (theirs.get(name), ours[name]) for name in ours if theirs.get(name) != ours[name]
        }
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
