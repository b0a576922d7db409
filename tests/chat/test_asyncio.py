"""Answers in an event loop: worker threads generate, and cancelling a task stops its answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import foveate
from foveate.chat import AsyncAnswerStream
from foveate.errors import InvalidInput
from foveate.prompts.messages import text_of

from .busy import PATIENCE, busy, calling, chat_of, within
from .families import talker

SHORT: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
FOUR: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": None}


def nothing() -> None:
    pass


def test_answers_are_those_of_say() -> None:
    chat = chat_of(talker("llava"))
    said = chat.fork().say("Hello", logits_processor=calling(nothing), **FOUR)

    async def main() -> None:
        branches = [chat.fork() for _ in range(3)]
        how = [{"logits_processor": calling(nothing), **FOUR} for _ in range(3)]
        stream = branches[1].astream("Hello", **how[1])
        task = asyncio.create_task(branches[0].asay("Hello", **how[0]))
        pieces = [piece async for piece in stream]
        assert "".join(pieces).strip() == said.text == (await stream).text
        assert [piece async for piece in stream] == []
        assert (await task).text == said.text
        start = partial(branches[2].complete, [{"role": "user", "content": "Hello"}], stream=True)
        assert (await AsyncAnswerStream(partial(start, **how[2]))).text == said.text

    within(lambda: asyncio.run(main()))


async def cancelled_task(chat: foveate.Chat, **how: Any) -> None:
    task = asyncio.create_task(chat.asay("Hello", **how))
    await asyncio.to_thread(chat.running.wait, PATIENCE)  # type: ignore[attr-defined]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def left_loop(chat: foveate.Chat, **how: Any) -> None:
    async def read() -> None:
        async for _ in chat.astream("Hello", **how):
            pass

    task = asyncio.create_task(read())
    await asyncio.to_thread(chat.running.wait, PATIENCE)  # type: ignore[attr-defined]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [cancelled_task, left_loop])
def test_cancelling_stops_the_answer(leave: Callable[..., Any]) -> None:
    chat, go = chat_of(talker("llava")), threading.Event()
    chat.running = threading.Event()  # type: ignore[attr-defined]

    def wait() -> None:
        chat.running.set()  # type: ignore[attr-defined]
        go.wait(PATIENCE)

    async def main() -> None:
        await leave(chat, logits_processor=calling(wait), **FOUR)
        go.set()
        await chat.asay("Go on", **SHORT)

    within(lambda: asyncio.run(main()))
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    assert len(text_of(chat.messages[1])) <= 2


def test_a_break_stops_the_answer() -> None:
    chat = chat_of(talker("llava"))

    async def main() -> foveate.Answer:
        stream = chat.astream("Hello", max_new_tokens=200, eos_token_id=None, do_sample=False)
        async for _ in stream:
            break
        return await stream

    assert within(lambda: asyncio.run(main())).ended == "stopped"


def test_a_task_that_is_cancelled_while_the_model_is_busy_ends_at_once() -> None:
    first = chat_of(talker("llava"))
    second = first.fork()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.asay("Next", max_new_tokens=40, eos_token_id=None), 0.2)

    with busy(first) as went_on:
        within(lambda: asyncio.run(main()))
        assert not went_on.is_set()
    within(lambda: second.say("Go on", **SHORT))
    assert len(second.messages) == 4


def test_errors_are_raised_where_the_answer_is_awaited() -> None:
    chat = chat_of(talker("llava"))

    async def main() -> None:
        with pytest.raises(InvalidInput, match=r"none\.png"):
            await chat.asay("Look", images=["none.png"])
        with pytest.raises(InvalidInput, match=r"none\.png"):
            async for _ in chat.astream("Look", images=["none.png"]):
                pass

    within(lambda: asyncio.run(main()))
    assert chat.messages == []
