"""A model that is busy with an answer for as long as a test wants, and calls that may not hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from transformers import LogitsProcessorList

import foveate

from .conversations import Spoken, words
from .families import Talker

PATIENCE = 60
"""Seconds after which a call counts as hanging."""

SPEC = "snapkv:budget=30%,window=4"


def chat_of(who: Talker, spec: str = SPEC, **settings: Any) -> foveate.Chat:
    """A chat with a family's model."""
    return foveate.Chat(who.model, who.processor, spec, **settings)


def calling(happens: Callable[[], Any], number: int = 0) -> LogitsProcessorList:
    """Letters for an answer of up to four tokens; something happens at the second one."""
    return LogitsProcessorList([Spoken(words(number), happens)])


def within(call: Callable[[], Any]) -> Any:
    """What a call returns or raises, in a thread that may be left behind if it hangs."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "the call hangs"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextmanager
def busy(chat: foveate.Chat) -> Iterator[Event]:
    """While the block runs, the chat's model is in the middle of an answer; it is set if the answer
    went on before the block ended.
    """
    running, go, went_on = Event(), Event(), Event()

    def wait() -> None:
        running.set()
        if not go.wait(PATIENCE / 4):
            went_on.set()

    def say() -> None:
        chat.say("Busy", logits_processor=calling(wait), max_new_tokens=4)

    thread = Thread(target=say, daemon=True)
    thread.start()
    assert running.wait(PATIENCE)
    try:
        yield went_on
    finally:
        go.set()
        thread.join(PATIENCE)
