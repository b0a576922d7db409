"""Answers for asyncio: a worker thread generates, an event loop receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from foveate.chat.generation import Answer
from foveate.chat.streaming import AnswerStream


class AsyncAnswerStream:
    """Async iterable of the pieces of an answer's text; awaiting it returns the complete answer.

    The answer is generated also if nobody reads the pieces. Leaving the loop early, or cancelling a
    task that iterates or awaits, stops it as ``Chat.stop`` does: the text so far is the answer.

    Args:
        start: a call that returns an :class:`AnswerStream`, such as
            ``partial(chat.retry, stream=True)``. It runs in a thread, because it decodes images.

    Raises:
        RuntimeError: no event loop is running.
    """

    def __init__(self, start: Callable[[], AnswerStream]):
        self._start, self._loop = start, asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._result: Future[Answer] = Future()
        self._result.set_running_or_notify_cancel()  # an awaiting task cannot cancel it
        self._stream: AnswerStream | None = None
        self._stopped = Event()
        Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """End the answer; the text so far is kept."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.stop()

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._answer().__await__()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the pieces that were not read yet."""
        ended = False
        try:
            while (piece := await self._pieces.get()) is not None:
                yield piece
            ended = True
            self._pieces.put_nowait(None)  # for a second loop
        finally:
            if not ended:
                self.stop()
        await self._answer()

    async def _answer(self) -> Answer:
        try:
            return await asyncio.wrap_future(self._result)
        except asyncio.CancelledError:
            self.stop()
            raise

    def _run(self) -> None:
        """Start the answer and pass its pieces to the event loop."""
        try:
            self._stream = self._start()
            if self._stopped.is_set():  # stop() may have run before there was a stream
                self._stream.stop()
            for piece in self._stream:
                self._post(piece)
            self._result.set_result(self._stream.answer)
        except BaseException as error:  # raised again where it is awaited
            self._result.set_exception(error)
        finally:
            self._post(None)

    def _post(self, piece: str | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
