"""Ray cluster: each worker loads the model once and takes one job after another.

Samples are drawn, and rows are written, in the process that started the run; workers need only the
model, at the same path.

``ray.util.ActorPool`` does not report which sample was lost with a worker, nor whether any worker
has started; workers restarted by Ray itself, as with ``map_batches``, hide both as well.
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
"""Errors that mean a lost worker or a lost result; another worker repeats the job."""

PATIENCE = "FOVEATE_RAY_PATIENCE"
"""Environment variable: seconds without any machine before the run ends (default 600)."""
TICK = 10.0  # seconds between checks of a waiting run
TRIES = 3  # attempts per sample
STORE = 256 * 2**20  # bytes of shared memory of a cluster started here; images pass through it
AT_HAND = "local"  # value of RAY_ADDRESS: a cluster of this machine only, even if another runs


class RayCluster(AbstractContextManager[Execute]):
    """Executor that connects to a Ray cluster on entry.

    It uses the cluster that this process is connected to, else that of RAY_ADDRESS or one running
    on this machine, else it starts one.
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
        # worker and job by pending result; the job is None while the worker loads the model
        self._flying: dict[Any, tuple[Any, Job | None]] = {}
        self._unplaced: dict[Any, Any] = {}  # workers that wait for a machine
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
            ray.shutdown()  # stops the workers, too
            return
        at_work = [worker for worker, _ in self._flying.values()]
        for worker in [*self._idle, *at_work, *self._unplaced.values()]:
            ray.kill(worker)

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Row]]]:
        retried: list[Job] = []  # jobs whose worker was lost
        pending = iter(jobs)
        at_hand = len(self._idle) + len(self._flying) + len(self._unplaced)
        for _ in range(at_hand, self._share.workers):
            self._hire()
        while True:
            while self._idle and (job := retried.pop() if retried else next(pending, None)):
                self._hand(self._idle.pop(), job)
            if self._idle and not any(job for _, job in self._flying.values()):
                return
            worker, job, done = self._next()
            try:
                result = _fetch(done)
            except LOST as error:
                self._count_lost(job, error)
                retried += [job] if job else []
                if not self._idle:
                    self._hire()
                continue
            self._idle.append(worker)
            if job:
                yield job, result
            else:
                _check(result)
                self._lost[None] = 0

    def _next(self) -> tuple[Any, Job | None, Any]:
        """Return the next finished worker with its job and its result."""
        waited = 0.0
        while True:
            tick = min(TICK, self._patience)
            ended, _ = ray.wait([*self._flying, *self._unplaced], num_returns=1, timeout=tick)
            for reference in ended:
                if reference in self._flying:
                    return *self._flying.pop(reference), reference
                hired = self._unplaced.pop(reference)
                self._flying[hired.ready.remote()] = hired, None
            waited = waited + tick if not ended and not self._flying else 0.0
            if waited:
                self._wait(waited)

    def _wait(self, waited: float) -> None:
        """Warn about waiting for machines; end the run after the limit."""
        machines = sum(bool(node["Alive"]) for node in ray.nodes())
        problem = (
            f"none of the cluster's {machines} machine(s) has started a worker, which takes "
            f"{self._share.cpus} free CPU(s) and {self._share.gpus} GPU(s)"
        )
        if waited >= self._patience:
            raise ClusterFailed(
                f"{problem}, for {waited:.0f} seconds. Finished answers are kept: add machines, "
                f"and continue with --resume. {PATIENCE} sets the limit."
            )
        _log.warning(
            "Waiting: %s. The run ends after %.0f seconds of that (%s); it has been %.0f.",
            problem,
            self._patience,
            PATIENCE,
            waited,
        )

    def _hire(self) -> None:
        """Start one more worker; it gets jobs once it has loaded the model."""
        folder = str(Path(self.model).expanduser().resolve()) if _is_folder(self.model) else ""
        options = {"num_cpus": self._share.cpus, "num_gpus": self._share.gpus}
        arguments = (self.model, folder, self.protocol, self.trusted, self.pads)
        hired = ray.remote(Worker).options(**options).remote(*arguments)
        self._unplaced[hired.placed.remote()] = hired

    def _hand(self, worker: Any, job: Job) -> None:
        """Send a job without its function that draws samples, which may not be picklable."""
        sent = job._replace(task=replace(job.task, samples=_drawn_elsewhere))
        self._flying[worker.answer.remote(sent)] = worker, job

    def _count_lost(self, job: Job | None, error: Exception) -> None:
        key = (job.task.name, job.sample.name) if job else None
        self._lost[key] += 1
        if self._lost[key] == TRIES:
            loss = f"sample {key[1]!r} of {key[0]}" if key else "loading the model"
            raise ClusterFailed(
                f"{loss} lost its worker {TRIES} times; the last one: {_first(error)} If memory is "
                "short, give fewer --workers. Finished answers are kept; continue with --resume."
            ) from error


class Worker:
    """Worker on the cluster. ``folder``: path of the model if it is a folder, else empty."""

    def __init__(
        self,
        model: str,
        folder: str,
        protocol: Protocol,
        trust_remote_code: bool = False,
        pad_images: bool = False,
    ):
        self.model, self.folder, self.protocol = model, folder, protocol
        self.trusted, self.pads = trust_remote_code, pad_images

    def placed(self) -> None:
        """Return as soon as the worker runs on a machine."""

    def ready(self) -> dict[str, Any]:
        """Load the model and return the versions of this machine."""
        loaded = load(self.folder or self.model, self.trusted, pad_images=self.pads)
        self.loaded = replace(loaded, name=self.model) if self.folder else loaded
        return versions_of_results()

    def answer(self, job: Job) -> list[Row]:
        """Return the rows of a job."""
        return list(answered(self.loaded, job, self.protocol))


def _patience() -> float:
    text = os.environ.get(PATIENCE, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidParameter(f"{PATIENCE}={text!r}: give a number of seconds above 0.")
    return seconds


def _connect(workers: int | None) -> None:
    """Connect to a cluster, or start one here, with usage reports switched off."""
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


def _fetch(done: Any) -> Any:
    """Return a worker's result, or raise its error as if it were raised here."""
    try:
        return ray.get(done)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, FoveateError):
            raise error.cause from None
        raise


def _check(theirs: Mapping[str, Any]) -> None:
    """Check that a worker runs the versions that the results record."""
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
