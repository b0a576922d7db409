"""Separate processes for work that may fail or hang.

Each part of the suite runs in its own process. Within a part, processes may check correctness in
parallel, but never time: most of the checks' time goes into compiling kernels.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Literal
from unittest.mock import patch

from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import Row, why

INTERPRET = "TRITON_INTERPRET"
ENDED = "the whole run was ended here"
Work = Callable[[], Iterator[Row]]
State = Literal["done", "stopped", "failed"]


@dataclass
class PartOutcome:
    """Outcome of a part: its rows so far, and the reason if there are no more."""

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
    """Run a part and stop it after ``limit`` seconds, keeping its rows. ``heard`` gets the outcome
    after every row, marked as stopped in case the run ends there.
    """
    context: Any = get_context("forkserver" if sys.platform != "win32" else "spawn")
    if sys.platform != "win32":
        context.set_forkserver_preload(["benchmarks.gpu.parts"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(name, setting, sender))
    # Triton reads it at import: kernels run on a GPU, or are interpreted on a CPU
    environment = {
        INTERPRET: "0" if setting.on_gpu else "1",
        "PYTHONPATH": os.pathsep.join(sys.path),  # the fork server inherits only the environment
    }
    with patch.dict(os.environ, environment):
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
    """Receive rows until the part ends, fails, dies or runs out of time."""
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


def _measured(name: str, setting: SuiteSetting, sender: Connection) -> None:
    """Measure a part as leader of a process group, so that its child processes end with it."""
    if hasattr(os, "setsid"):
        os.setsid()
    from benchmarks.gpu.parts import PARTS

    _send(partial(PARTS[name].rows, setting), sender)


def _send(work: Work, sender: Connection) -> None:
    try:
        for row in work():
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


def side_by_side(works: Sequence[tuple[Row, Work]]) -> Iterator[Row]:
    """Yield the rows of all works as they arrive, each forked from this process.

    This process must not have used a GPU. A work that fails or dies yields a row with its name and
    the reason.
    """
    context = get_context("fork")
    open_ends: dict[Any, tuple[Row, Any]] = {}
    for what, work in works:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(work, sender))
        process.start()
        sender.close()
        open_ends[receiver] = what, process
    while open_ends:
        for end in wait(list(open_ends)):
            what, process = open_ends[end]
            kind, value = _received(end, process)
            if kind == "row":
                yield value
                continue
            if kind == "failed":
                yield {**what, "failed": value}
            del open_ends[end]


def _received(end: Any, process: Any) -> tuple[str, Any]:
    try:
        kind, value = end.recv()
    except EOFError:
        process.join()
        return "failed", f"its process ended with status {process.exitcode}"
    return kind, value
