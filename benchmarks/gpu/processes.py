"""Work in processes of its own: what goes wrong in one, or never ends, ends there.

A part of the suite runs apart from the rest. Inside a part, several processes may measure side by
side what is right or wrong, never what is timed: most of that time goes into compiling kernels.
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
    # Triton reads it when it is imported: kernels run on a GPU, or are interpreted on a CPU
    environment = {
        INTERPRET: "0" if setting.on_gpu else "1",
        "PYTHONPATH": os.pathsep.join(sys.path),  # for the server, which knows no more
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


def _measured(name: str, setting: SuiteSetting, sender: Connection) -> None:
    """Measure a part, as the leader of a process group, so that what it starts ends with it."""
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
    """Yield the rows of all as they come, each from a process that is forked from this one: it may
    not have touched a GPU. One that fails or dies gives a row that names it, and the reason.
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
