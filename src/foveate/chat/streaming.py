"""An answer piece by piece, while it is generated."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic
from typing import Any
from weakref import WeakSet

from transformers import TextIteratorStreamer

from foveate.chat.asking import Answer
from foveate.hf.attach.model_queue import QueuePlace

_running: WeakSet[AnswerStream] = WeakSet()

_AT_EXIT = 60.0
"""Seconds that a program which ends waits for answers to end: a pass of the model cannot be cut
short, and a thread that PyTorch works in when the interpreter goes aborts the process.
"""


class AnswerStream:
    """Pieces of an answer's text, in order; ``answer`` is all of it, once it has ended.

    The answer is generated in a thread of its own, also if nobody reads the pieces. Leaving the
    loop early stops it, and so does the end of the program: the text so far is the answer.
    """

    def __init__(
        self, tokenizer: Any, answer: Callable[[Any], Answer], stop: Event, place: QueuePlace
    ):
        """Start the thread, which takes over the ``place`` in the model's queue.

        Raises:
            RuntimeError: the system starts no further thread.
        """
        self._streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._generate, self._stop, self._place = answer, stop, place
        self._result: Future[Answer] = Future()
        self._begun = False
        self._thread = Thread(target=self._run, daemon=True)
        place.hand_over(self._thread)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.set_result(self._generate(self._streamer))
        except BaseException as error:  # it is raised where the pieces are read
            self._result.set_exception(error)
        finally:  # whatever happens, or a reader would wait for ever
            self._streamer.text_queue.put(self._streamer.stop_signal)

    def __iter__(self) -> Iterator[str]:
        """Yield the pieces that nobody has read yet."""
        ended = False
        try:
            while (piece := self._streamer.text_queue.get()) != self._streamer.stop_signal:
                piece = piece if self._begun else piece.lstrip()
                if piece:
                    self._begun = True
                    yield piece
            ended = True
        finally:
            if not ended and self._thread.is_alive():
                self._stop.set()
            self._streamer.text_queue.put(self._streamer.stop_signal)  # for a second loop
        _ = self.answer

    @property
    def answer(self) -> Answer:
        """The complete answer; waits until it has ended, and raises what ended it otherwise."""
        self._thread.join()
        return self._result.result()

    def _end(self) -> None:
        """Stop the answer, or withdraw it if it has not begun."""
        self._place.withdraw()
        self._stop.set()


@atexit.register
def _end_all() -> None:
    """Before the interpreter goes, end the answers that are still generated."""
    streams, deadline = list(_running), monotonic() + _AT_EXIT
    for stream in streams:
        stream._end()
    for stream in streams:
        stream._thread.join(max(0.0, deadline - monotonic()))
