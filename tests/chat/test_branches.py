"""What may happen between turns and within one leaves the conversation exact: saved and loaded,
forked, answered anew, edited, stopped, interrupted, streamed; at each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import foveate
from foveate.errors import InvalidInput
from tests.pairs import by_turns

from .conversations import TURNS, Record, image
from .families import PROCESSORS, Talker, talker
from .test_turns import EXACT

Happening = Callable[[foveate.Chat, Record, int, Talker, Path], foveate.Chat]


def loaded(chat, record, number, who, path):
    record.say(chat, number)
    chat.save(path / "chat.safetensors")
    return foveate.Chat.load(path / "chat.safetensors", who.model, who.processor)


def forked(chat, record, number, who, path):
    """Two go on from here, turn about; the other one is another conversation."""
    record.say(chat, number)
    branch, other, given = chat.fork(), Record(), list(record.given)
    for later in (0, 2):
        other.say(branch, later)
    other.of(branch, 3, None, call="retry")
    record.given[:] = given
    return chat


def retried(chat, record, number, who, path):
    """The first answer was another."""
    text, images = TURNS[number]
    record.of(chat, number + 10, who.eos, text, images=[image(i) for i in images])
    record.forget()
    record.of(chat, number, who.eos, call="retry")
    return chat


def edited(chat, record, number, who, path):
    text, images = TURNS[number]
    record.of(chat, number, None, "Something longer?", images=[image(i) for i in images])
    record.forget()
    record.of(chat, number, None, text, call="edit")
    assert chat.messages[-2]["content"][-1] == {"type": "text", "text": text}
    return chat


def stopped(chat, record, number, who, path):
    answer = record.say(chat, number, happens=chat.stop)
    assert (answer.ended, len(answer.ids)) == ("stopped", 2)
    return chat


def interrupted(chat, record, number, who, path):
    """The turn is as if it had never been said; its images are given again."""

    def interrupt():
        raise KeyboardInterrupt

    before, messages = chat.held, chat.messages
    with pytest.raises(KeyboardInterrupt):
        record.say(chat, number, happens=interrupt)
    del record.given[-1]
    assert (chat.held, chat.messages) == (before, messages)
    record.say(chat, number)
    return chat


def streamed(chat, record, number, who, path):
    record.say(chat, number, who.eos, stream=True)
    return chat


HAPPENINGS = {
    one.__name__: one for one in (loaded, forked, retried, edited, stopped, interrupted, streamed)
}


@by_turns(
    name=list(PROCESSORS),
    happening=HAPPENINGS,
    number=range(len(TURNS)),
    spec=["snapkv:budget=100%,window=4", "adakv:budget=30%,window=4"],
)
def test_the_conversation_is_as_it_is_without(
    name: str, happening: Happening, number: int, spec: str, tmp_path: Path
) -> None:
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, spec)
    with record.listening():
        for turn in range(len(TURNS)):
            if turn == number:
                chat = happening(chat, record, turn, who, tmp_path)
            else:
                record.say(chat, turn)
    assert record.differs(who, chat, masked=True) <= EXACT
    assert [one["role"] for one in chat.messages] == ["user", "assistant"] * len(TURNS)


def test_an_empty_chat_has_nothing_to_save_or_to_answer_anew(tmp_path: Path) -> None:
    who = talker("llava")
    chat = foveate.Chat(who.model, who.processor)
    with pytest.raises(InvalidInput, match="no turn to save yet"):
        chat.save(tmp_path / "chat.safetensors")
    with pytest.raises(InvalidInput, match=r"there is no turn to answer again"):
        chat.retry()


def test_a_file_without_a_chat_is_no_chat(tmp_path: Path) -> None:
    who = talker("llava")
    with foveate.compress(who.model, "snapkv:budget=30%,window=4") as session:
        session.prefill(**who.processor(text="What?", return_tensors="pt"))
        session.save(tmp_path / "cache.safetensors", tokenizer=who.processor)
    with pytest.raises(InvalidInput, match="contains a cache and no chat"):
        foveate.Chat.load(tmp_path / "cache.safetensors", who.model, who.processor)
