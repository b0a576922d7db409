"""An answer piece by piece, while it is being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from transformers import TextIteratorStreamer

from foveate.chat.asking import Answer


class AnswerStream:
    """Pieces of an answer's text, in order; ``answer`` is all of it, once it has ended.

    The answer is made in a thread of its own, whether or not anybody looks on. Who leaves the loop
    early stops it: what has been said by then is the answer.
    """

    def __init__(self, tokenizer: Any, answer: Callable[[Any], Answer], stop: Callable[[], None]):
        self._streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._answer, self._stop = answer, stop
        self._said: Answer | None = None
        self._begun = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._said = self._answer(self._streamer)
        except BaseException as error:  # it is raised where the pieces are read
            self._error = error
        finally:  # whatever happens: who reads would wait for ever
            self._streamer.text_queue.put(self._streamer.stop_signal)

    def __iter__(self) -> Iterator[str]:
        """The pieces that nobody has read yet."""
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
                self._stop()
            self._streamer.text_queue.put(self._streamer.stop_signal)  # for a second loop
        self._raise()

    @property
    def answer(self) -> Answer:
        """The whole answer; waits until it has ended, and raises what ended it otherwise."""
        self._thread.join()
        self._raise()
        assert self._said is not None
        return self._said

    def _raise(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
