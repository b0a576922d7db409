"""Turns of a model's calls: one call at a time, robust against interrupts.

An interrupt (a notebook's stop button, a signal handler, an exception that another thread sets) may
fall anywhere, also into the lines that end a call, and a process may fork in the middle of one. So
no lock has to be released: a call counts while it has not ended and its frame runs. Its inputs and
its changes go with it: whichever call first notices that it is over cleans up.
"""

from __future__ import annotations

import sys
from threading import Lock, get_ident, local
from types import FrameType
from typing import Protocol

from foveate.hf.layer.call_inputs import CallInputs

PATIENCE = 0.05  # seconds between checks of a waiting thread whether the other call still runs


def is_running(frame: FrameType, thread: int) -> bool:
    """Return whether a frame of the thread with that identifier still executes."""
    if thread != get_ident() and thread not in sys._current_frames():
        return False  # it ended, or a fork left it behind
    # NOTE: another thread's stack cannot be walked by f_back: frames end on the way, and CPython
    # 3.11 then returns objects that are no frames. Clearing a frame that executes raises.
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


class _CallsOfThread(local):
    """Calls that this thread has taken, outermost first; some may have been interrupted."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


_of_thread = _CallsOfThread()


def end_calls() -> None:
    """End the calls that this thread is inside of, before it waits for another thread that may have
    to make one. Their frames continue.
    """
    for call in reversed(_of_thread.calls):
        if call.runs():
            call.end()
    _of_thread.calls = []


class Undo(Protocol):
    """A change for the duration of a call; ``put_back`` is idempotent."""

    def put_back(self) -> None: ...


class Call:
    """One call of a thread, identified by its frame (None: no call), with its inputs.

    ``outer`` is the call inside which it was made. The outermost call holds the turn; its
    ``innermost`` is the latest call inside it.
    """

    def __init__(self, frame: FrameType | None = None, outer: Call | None = None):
        self.frame, self.outer, self.thread = frame, outer, get_ident()
        self.inputs: CallInputs = CallInputs(None if outer is None else outer.inputs)
        self.undo: Undo | None = None
        self.innermost = self
        self.holder: Call = self if outer is None else outer.holder
        self.before: Call | None = None  # the previous turn, until it is settled
        self.next: dict[str, Call] = {}  # the next turn: set once, by an atomic setdefault
        self._going = Lock()
        self._going.acquire()

    def runs(self) -> bool:
        """Return True while its frame is on its thread's stack. Another thread's call may end at
        any time.
        """
        return self.frame is not None and is_running(self.frame, self.thread)

    def wait(self) -> None:
        """Wait until it no longer runs."""
        while self.runs():
            if self._going.acquire(timeout=PATIENCE):
                self._going.release()

    def end(self) -> None:
        """End the call; its frame does this last. If an interrupt prevents it, the next call cleans
        up.
        """
        self.settle()
        self.holder.innermost = self.outer or self
        self.inputs = CallInputs()
        if self.frame is not None:
            self.frame = None
            self._going.release()

    def settle(self) -> None:
        """Restore its changes."""
        if self.undo is not None:
            self.undo.put_back()
            self.undo = None

    def settle_all(self) -> None:
        """Restore the changes of a call that is over, of the calls inside it, and of earlier turns
        that were not settled, from the latest on.
        """
        call: Call | None = self.innermost
        while call is not None:
            call.settle()
            call = call.outer
        if self.before is not None:
            self.before.settle_all()
            self.before = None


class CallTurn:
    """The turn of one model's calls: a chain of calls, whose last one has the turn."""

    def __init__(self) -> None:
        self._last = Call()

    def take(self, frame: FrameType) -> Call:
        """Take the turn for the call of a frame; wait for a call of another thread. A call made
        inside a call of the same thread has the turn already.

        The frame must end the call in its ``finally``.
        """
        last = self._latest()
        if last.thread == get_ident() and last.runs():
            return _inside(last, frame)
        _of_thread.calls = [call for call in _of_thread.calls if call.runs()]
        own = Call(frame)
        while True:
            last = own.before = self._latest()
            last.wait()
            if last.next.setdefault("call", own) is own:
                self._last = own
                last.settle_all()
                own.before = None
                _of_thread.calls.append(own)
                return own

    def settle(self) -> None:
        """Restore the changes of calls that are over."""
        if not (last := self._latest()).runs():
            last.settle_all()

    def _latest(self) -> Call:
        """Return the last call of the chain, beyond this thread's last view of it."""
        last = self._last
        while (after := last.next.get("call")) is not None:
            last = after
        self._last = last
        return last


def _inside(holder: Call, frame: FrameType) -> Call:
    """Return a new call inside the innermost one that still runs; the others were interrupted."""
    outer = holder.innermost
    while outer is not holder and not outer.runs():
        outer.settle()
        outer = outer.outer or holder
    holder.innermost = inner = Call(frame, outer)
    return inner
