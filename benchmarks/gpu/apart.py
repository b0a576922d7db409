"""A part of the suite in a process of its own: what goes wrong in it, or never ends, ends there."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Literal

from benchmarks.gpu.rows import Row, why
from benchmarks.gpu.setting import SuiteSetting

INTERPRET = "TRITON_INTERPRET"
ENDED = "the whole run was ended here"
State = Literal["done", "stopped", "failed"]


@dataclass
class PartOutcome:
    """What came of a part: its rows so far, and why there are no more."""

    state: State = "done"
    reason: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def apart(
    name: str,
    setting: SuiteSetting,
    limit: int,
    heard: Callable[[PartOutcome], object] = lambda so_far: None,
) -> PartOutcome:
    """Runs a part, and stops it after ``limit`` seconds; what it had measured stays. ``heard`` gets
    what there is after every row: a part that is stopped, should the run end there.

    The process is forked from one that has imported everything and has touched no GPU.
    """
    context: Any = get_context("forkserver" if sys.platform != "win32" else "spawn")
    if sys.platform != "win32":
        context.set_forkserver_preload(["benchmarks.gpu.parts"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(name, setting, sender))
    with _interpreting(not setting.on_gpu):
        process.start()
    sender.close()
    start, outcome = time.monotonic(), PartOutcome("stopped", ENDED)

    def arrived() -> None:
        outcome.seconds = round(time.monotonic() - start, 1)
        heard(outcome)

    try:
        outcome.state, outcome.reason = _listen(receiver, start + limit, limit, outcome, arrived)
    finally:
        _end(process)
        receiver.close()
    outcome.seconds = round(time.monotonic() - start, 1)
    if outcome.state == "failed" and not outcome.reason:
        outcome.reason = f"its process ended with status {process.exitcode}"
    return outcome


def _listen(
    receiver: Connection,
    until: float,
    limit: int,
    outcome: PartOutcome,
    arrived: Callable[[], object] = lambda: None,
) -> tuple[State, str]:
    """Takes rows until the part ends, fails, dies or runs out of time."""
    while receiver.poll(max(0.0, until - time.monotonic())):
        try:
            kind, value = receiver.recv()
        except EOFError:
            return "failed", ""
        if kind != "row":
            return kind, value
        outcome.rows.append(value)
        arrived()
    return "stopped", f"not done after {limit} s"


@contextmanager
def _interpreting(on: bool) -> Iterator[None]:
    """A server that starts inside imports a Triton whose kernels run on a CPU, or else on a GPU."""
    before = os.environ.get(INTERPRET)
    os.environ[INTERPRET] = "1" if on else "0"
    try:
        yield
    finally:
        del os.environ[INTERPRET]
        if before is not None:
            os.environ[INTERPRET] = before


def _measured(name: str, setting: SuiteSetting, sender: Connection) -> None:
    """What the process does. It leads a group of its own, so that what it starts ends with it."""
    if hasattr(os, "setsid"):
        os.setsid()
    from benchmarks.gpu.parts import PARTS

    try:
        for row in PARTS[name].rows(setting):
            sender.send(("row", row))
        sender.send(("done", ""))
    except Exception as error:
        sender.send(("failed", why(error)))


def _end(process: Any) -> None:
    process.join(2)
    if process.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.join()
