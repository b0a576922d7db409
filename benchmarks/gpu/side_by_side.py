"""Several processes that measure at once: for what is right or wrong, never for what is timed. Most
of its time goes into compiling kernels, each on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.gpu.rows import Row, why

Work = Callable[[], Iterator[Row]]


def side_by_side(works: Sequence[tuple[Row, Work]]) -> Iterator[Row]:
    """The rows of all as they come, each from a process of its own, forked from this one: it may
    not have touched a GPU. For one that fails or dies there is a row of what it is, and the reason.
    """
    context = get_context("fork")
    open_ends: dict[Any, tuple[Row, Any]] = {}
    for what, work in works:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=partial(_sent, what, work, sender))
        process.start()
        sender.close()
        open_ends[receiver] = what, process
    while open_ends:
        for one in wait(list(open_ends)):
            end: Any = one
            try:
                row = end.recv()
            except EOFError:
                what, process = open_ends.pop(end)
                process.join()
                row = {**what, "failed": f"its process ended with status {process.exitcode}"}
                if process.exitcode == 0:
                    continue
            yield row


def _sent(what: Row, work: Work, sender: Connection) -> None:
    try:
        for row in work():
            sender.send(row)
    except Exception as error:
        sender.send({**what, "failed": why(error)})
