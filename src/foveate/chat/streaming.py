"""Stream of an answer's text while it is generated."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic
from typing import Any
from weakref import WeakSet

from transformers import TextIteratorStreamer

from foveate.chat.generation import Answer
from foveate.hf.attach.model_queue import QueuePlace

_running: WeakSet[AnswerStream] = WeakSet()

_AT_EXIT = 60.0
"""Seconds that an ending program waits for running answers: a forward pass cannot be interrupted,
and a thread inside PyTorch while the interpreter shuts down aborts the process.
"""


class AnswerStream:
    """Iterable of the pieces of an answer's text; ``answer`` is the complete one.

    A thread generates the answer, also if nobody reads the pieces. Leaving the loop early or ending
    the program stops it: the text so far is the answer.
    """

    def __init__(
        self, tokenizer: Any, answer: Callable[[Any], Answer], stop: Event, queue_place: QueuePlace
    ):
        """Start the thread, which takes over the place in the model's queue.

        Raises:
            RuntimeError: the system starts no further thread.
        """
        self._streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._generate, self._stop, self._queue_place = answer, stop, queue_place
        self._result: Future[Answer] = Future()
        self._result.set_running_or_notify_cancel()  # an awaiting task cannot cancel it
        self._has_text = False
        self._thread = Thread(target=self._run, daemon=True)
        queue_place.hand_over(self._thread)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.set_result(self._generate(self._streamer))
        except BaseException as error:  # raised again where the pieces are read
            self._result.set_exception(error)
        finally:  # after errors, too: otherwise a reader waits forever
            self._streamer.text_queue.put(self._streamer.stop_signal)

    def __iter__(self) -> Iterator[str]:
        """Yield the pieces that were not read yet."""
        ended = False
        try:
            while (piece := self._streamer.text_queue.get()) != self._streamer.stop_signal:
                piece = piece if self._has_text else piece.lstrip()
                if piece:
                    self._has_text = True
                    yield piece
            ended = True
        finally:
            if not ended and self._thread.is_alive():
                self._stop.set()
            self._streamer.text_queue.put(self._streamer.stop_signal)  # for a second loop
        _ = self.answer

    def __repr__(self) -> str:
        state = "ended" if self._result.done() else "running"
        return f"AnswerStream({state}: iterate over its text, or wait for .answer)"

    @property
    def answer(self) -> Answer:
        """Complete answer; waits for its end, and raises the error of a failed one."""
        self._thread.join()
        return self._result.result()

    def stop(self) -> None:
        """End this answer as ``Chat.stop`` does; the text so far is kept."""
        self._stop.set()

    def _end(self) -> None:
        """Stop the answer; if it waits in the queue, withdraw it."""
        self._queue_place.withdraw()
        self._stop.set()


@atexit.register
def _end_all() -> None:
    """Stop running answers before the interpreter shuts down."""
    streams, deadline = list(_running), monotonic() + _AT_EXIT
    for stream in streams:
        stream._end()
    for stream in streams:
        stream._thread.join(max(0.0, deadline - monotonic()))
