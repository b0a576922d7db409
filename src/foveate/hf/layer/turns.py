"""One call at a time, and none that was cut short holds another one up.

An interrupt (a notebook's stop button, a signal handler, an exception that another thread sets) may
fall anywhere, also into the very lines that end a call, and a process may fork in the middle of
one. So nothing here has to be unlocked: a call counts while it has not ended and the frame that
made it runs. What it said and what it holds go with it, whoever notices first that it is over.
"""

from __future__ import annotations

import sys
from threading import Lock, get_ident, local
from types import FrameType
from typing import Protocol

from foveate.hf.layer.next_prompt import CallInputs

PATIENCE = 0.05  # seconds until somebody who waits looks again whether the other call still runs


def is_running(frame: FrameType, thread: int) -> bool:
    """Return whether a frame of the thread with that identifier still executes."""
    if thread != get_ident() and thread not in sys._current_frames():
        return False  # it ended, or a fork left it behind
    # NOTE: another thread's stack cannot be walked by f_back: frames end on the way, and CPython
    # 3.11 then returns objects that are no frames. To clear a frame that executes is refused.
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


class _CallsOfThread(local):
    """The calls that this thread has taken, outermost first; some may have been cut short."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


_of_thread = _CallsOfThread()


def end_calls() -> None:
    """End the calls that this thread is inside of, because it waits for another thread, which may
    have to make one. Their frames go on without them.
    """
    for call in reversed(_of_thread.calls):
        if call.runs():
            call.end()
    _of_thread.calls = []


class Undo(Protocol):
    """Something that was changed for the time of a call; putting it back twice changes nothing."""

    def put_back(self) -> None: ...


class Call:
    """One call of a thread, by the frame that made it (None: of nobody), and what it was told.

    ``outer`` is the call inside which it was made. The outermost one holds the turn; its
    ``innermost`` is the latest that was made inside of it.
    """

    def __init__(self, frame: FrameType | None = None, outer: Call | None = None):
        self.frame, self.outer, self.thread = frame, outer, get_ident()
        self.inputs: CallInputs = CallInputs(None if outer is None else outer.inputs)
        self.undo: Undo | None = None
        self.innermost = self
        self.holder: Call = self if outer is None else outer.holder
        self.before: Call | None = None  # whose turn it was, until it is settled
        self.next: dict[str, Call] = {}  # whose turn it is: set once, by an operation that is whole
        self._going = Lock()
        self._going.acquire()

    def runs(self) -> bool:
        """Return whether its frame is on its thread's stack. Another thread's goes on meanwhile."""
        return self.frame is not None and is_running(self.frame, self.thread)

    def wait(self) -> None:
        """Until it runs no more."""
        while self.runs():
            if self._going.acquire(timeout=PATIENCE):
                self._going.release()

    def end(self) -> None:
        """What its frame does last. If it is kept from it, the next call finds out."""
        self.settle()
        self.holder.innermost = self.outer or self
        self.inputs = CallInputs()
        if self.frame is not None:
            self.frame = None
            self._going.release()

    def settle(self) -> None:
        """Puts back what it changed."""
        if self.undo is not None:
            self.undo.put_back()
            self.undo = None

    def settle_all(self) -> None:
        """The same of a call that is over, of those inside it, and of those that had its turn
        before and were not settled, from the latest on.
        """
        call: Call | None = self.innermost
        while call is not None:
            call.settle()
            call = call.outer
        if self.before is not None:
            self.before.settle_all()
            self.before = None


class CallTurn:
    """Whose call it is: a chain of calls, of which the last has the turn."""

    def __init__(self) -> None:
        self._last = Call()

    def take(self, frame: FrameType) -> Call:
        """The turn for the call that a frame makes; waits for a call of another thread. A call made
        inside a call of the same thread has the turn already.

        The frame ends the call in its ``finally``.
        """
        last = self._latest()
        if last.thread == get_ident() and last.runs():
            return _inside(last, frame)
        _of_thread.calls = [call for call in _of_thread.calls if call.runs()]
        mine = Call(frame)
        while True:
            last = mine.before = self._latest()
            last.wait()
            if last.next.setdefault("call", mine) is mine:
                self._last = mine
                last.settle_all()
                mine.before = None
                _of_thread.calls.append(mine)
                return mine

    def settle(self) -> None:
        """Puts back what was left by calls that are over."""
        if not (last := self._latest()).runs():
            last.settle_all()

    def _latest(self) -> Call:
        """The last of the chain, wherever this thread had seen its end."""
        last = self._last
        while (after := last.next.get("call")) is not None:
            last = after
        self._last = last
        return last


def _inside(holder: Call, frame: FrameType) -> Call:
    """A call inside the innermost one that still runs; others were cut short."""
    outer = holder.innermost
    while outer is not holder and not outer.runs():
        outer.settle()
        outer = outer.outer or holder
    holder.innermost = inner = Call(frame, outer)
    return inner
