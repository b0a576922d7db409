"""A command as a process of its own, which gets the signals that this one is sent."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

GRACE = 3.0
"""Seconds in which the rest of a group may end."""


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command to its end, and returns its exit status as a shell would.

    A process group of its own: Ctrl-C reaches every process of the terminal's group, and a server
    that is sent the signal twice, by the terminal and from here, ends without finishing its work.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # sent while the child is being started

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with _handled_by(forward):
        # stdin: whoever reads from the terminal outside its group is stopped; and a pipe's other
        # end tells the child when this process is gone
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environ, process_group=0, stdin=pipe) as child:
            for number in early:
                child.send_signal(number)
            status = child.wait()
        _end_rest(child.pid)
    return status if status >= 0 else 128 - status  # negative: the signal that ended it


def _end_rest(group: int) -> None:
    """What a killed child leaves behind of its group is asked to end, and made to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + GRACE
        try:
            os.killpg(group, number)
            while time.monotonic() < end:
                time.sleep(0.05)
                os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # nobody is left, or but what is to be reaped
            return


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that ask a program to end go to the handler; under ``nohup``, a hang-up to none."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
