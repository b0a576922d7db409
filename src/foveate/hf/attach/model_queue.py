"""A queue for each model: chats, pipelines, streams and ``custom_generate`` use the model one at a
time.

Turns run in the order in which they were requested. As in ``turns.py``, no lock has to be released:
a place counts while the frame that took it runs, or the thread that it was handed to, so neither an
interrupt nor a thread that never started blocks the others.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock, Thread, get_ident
from types import FrameType
from weakref import WeakKeyDictionary, ref

from torch import nn

from foveate.errors import AlreadyCompressing
from foveate.hf.layer.call_turn import PATIENCE, end_calls, is_running
from foveate.hf.layer.support import inner_model, text_config
from foveate.hf.model.decoder import find

_queues: WeakKeyDictionary[nn.Module, deque[QueuePlace]] = WeakKeyDictionary()
"""Queues by decoder: a model, its PEFT wrapper and its compiled form have the same one."""

_decoders: WeakKeyDictionary[nn.Module, ref[nn.Module]] = WeakKeyDictionary()
"""Decoders by model, cached because finding one visits every module."""


class Withdrawn(BaseException):
    """Signal raised in a thread whose turn was withdrawn while it waited: the program ends."""


class QueuePlace:
    """One turn in the queue of a model; a context manager that waits for it, and ends it."""

    def __init__(self, queue: deque[QueuePlace], frame: FrameType):
        self._queue = queue
        self._frame: FrameType | None = frame
        self._thread = get_ident()
        self._worker: Thread | None = None
        self._withdrawn = False
        self._ended = Lock()  # locked until the turn ends
        self._ended.acquire()

    def hand_over(self, worker: Thread) -> None:
        """Let a thread, which is about to start, take the turn over."""
        self._worker = worker

    def counts(self) -> bool:
        """Return True if its caller or its worker is alive."""
        return (self._worker is not None and self._worker.is_alive()) or self._caller_runs()

    def is_of_this_thread(self) -> bool:
        """Return whether this thread is inside the turn, or waits for it."""
        if self._worker is not None and self._worker.ident == get_ident():
            return True
        return self._thread == get_ident() and self._caller_runs()

    def _caller_runs(self) -> bool:
        frame = self._frame
        return frame is not None and is_running(frame, self._thread)

    def wait(self) -> None:
        """Wait until all earlier turns have ended."""
        while (first := _first(self._queue)) is not None and first is not self:
            if self._withdrawn:
                raise Withdrawn
            end_calls()  # custom_generate waits inside a call, in the context of an earlier turn
            if first._ended.acquire(timeout=PATIENCE):
                first._release()

    def withdraw(self) -> None:
        """Give the turn up if it has not begun."""
        self._withdrawn = True

    def leave(self) -> None:
        """End the turn; the next one begins. Ending it twice changes nothing."""
        self._frame = None
        with suppress(ValueError):
            self._queue.remove(self)
        self._release()

    def _release(self) -> None:
        with suppress(RuntimeError):  # several threads may drop one dead turn
            self._ended.release()

    def __enter__(self) -> QueuePlace:
        self.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def enter(model: nn.Module, frame: FrameType) -> QueuePlace:
    """Append a turn to a model's queue, for as long as ``frame`` runs: the caller's own, as a
    wrapper around this function may pass another.

    Raises:
        AlreadyCompressing: this thread is inside a turn of the model already, so it would wait for
            itself for ever.
    """
    queue = _queue_of(model)
    if any(turn.is_of_this_thread() for turn in queue.copy()):
        raise AlreadyCompressing(
            f"this {type(inner_model(model)).__name__} is answering in this thread: a chat, stream "
            "or pipeline cannot use it from a streamer, logits processor or other callback of that "
            "answer. Wait until the answer has ended."
        )
    turn = QueuePlace(queue, frame)
    queue.append(turn)
    return turn


def _queue_of(model: nn.Module) -> deque[QueuePlace]:
    inner = inner_model(model)
    decoder = _decoders[inner]() if inner in _decoders else None
    if decoder is None:
        decoder = find(inner, text_config(inner)).decoder  # type: ignore[arg-type]
        _decoders[inner] = ref(decoder)
    return _queues.setdefault(decoder, deque())


def _first(queue: deque[QueuePlace]) -> QueuePlace | None:
    """Return the first turn that counts; drop those before it."""
    for turn in queue.copy():
        if turn.counts():
            return turn
        turn.leave()
    return None
