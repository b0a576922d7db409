"""Complete lists of messages: only what follows the longest stored beginning is read."""

from __future__ import annotations

import base64
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import LogitsProcessorList

import foveate
from foveate.chat.turns import Turns
from foveate.errors import InvalidInput
from foveate.hf.layer.support import foveate_layers
from tests import zoo

from .busy import chat_of
from .conversations import TURNS, Spoken, image
from .families import talker

EVERYTHING = "snapkv:budget=100%,window=4"
ANSWERS = ("Yes.", "No!", "12.50", "Maybe", "It is", "Tea")
FAMILIES = ("llava", "qwen2_vl", "qwen3_vl", "internvl", "gemma3")
RENDERED_ALIKE = ("qwen2_vl", "qwen3_vl", "internvl", "gemma3")
"""Families whose templates render an answer exactly as it was generated."""


def spoken(answer: str, eos: int) -> dict[str, Any]:
    """Arguments of generate that make the model say this."""
    tokens = [zoo.TEXT_FROM + ord(letter) - 32 for letter in answer]
    processors = LogitsProcessorList([Spoken([*tokens, eos])])
    return {"logits_processor": processors, "max_new_tokens": len(tokens) + 1, "eos_token_id": eos}


def url(number: int, level: int = 1) -> str:
    """The image as a data URL; other levels have other bytes and the same pixels."""
    file = io.BytesIO()
    image(number).save(file, "PNG", compress_level=level)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def history(count: int, level: int = 1) -> list[dict[str, Any]]:
    """The messages up to the user's message of turn ``count``, in OpenAI's form."""
    found: list[dict[str, Any]] = []
    for turn in range(count + 1):
        text, images = TURNS[turn]
        parts = [{"type": "image_url", "image_url": {"url": url(i, level)}} for i in images]
        found.append({"role": "user", "content": [*parts, {"type": "text", "text": text}]})
        found.append({"role": "assistant", "content": ANSWERS[turn]})
    return found[:-1]


@contextmanager
def reads() -> Iterator[list[int]]:
    """The numbers of tokens that the turns read."""
    prepared, found = Turns.prepared, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        ready = prepared(*args, **kwargs)
        found.append(ready.part.ids.shape[1])
        return ready

    with mock.patch.object(Turns, "prepared", noted):
        yield found


def stored(chat: foveate.Chat) -> int:
    """The number of tokens that the chat has read."""
    return foveate_layers(chat._now.cache)[0].seen


def difference(one: foveate.Chat, other: foveate.Chat, eos: int) -> float:
    """The largest difference between pairs of two chats, and between logits of a next answer."""
    assert torch.equal(one._now.ids, other._now.ids)
    apart, logits = [], []
    for mine, theirs in zip(*(foveate_layers(c._now.cache) for c in (one, other)), strict=True):
        (k, v, columns), (k2, v2, columns2) = mine.pairs.padded(), theirs.pairs.padded()
        assert torch.equal(columns, columns2)
        apart += [float((k - k2).abs().max()), float((v - v2).abs().max())]
    for chat in (one, other):
        how = spoken("Next", eos)
        chat.fork().say("Go on", **how)
        logits.append(torch.stack(how["logits_processor"][0].logits))
    return max(*apart, float((logits[0] - logits[1]).abs().max()))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("spec", [EVERYTHING, "snapkv:budget=30%,window=4"])
def test_a_list_is_continued_as_a_chat_is(name: str, spec: str) -> None:
    who = talker(name)
    chat, said = chat_of(who, spec), chat_of(who, spec)
    with reads() as found:
        for turn, (text, images) in enumerate(TURNS):
            answer = chat.complete(history(turn, level=turn), **spoken(ANSWERS[turn], who.eos))
            assert answer.text == ANSWERS[turn]
            said.say(text, images=[image(i) for i in images], **spoken(ANSWERS[turn], who.eos))
    assert found[::2] == found[1::2]
    assert difference(chat, said, who.eos) == 0.0


@pytest.mark.parametrize("name", RENDERED_ALIKE)
def test_turn_by_turn_and_at_once_have_the_same_cache(name: str) -> None:
    who = talker(name)
    chat, fresh = chat_of(who, EVERYTHING), chat_of(who, EVERYTHING)
    for turn in range(4):
        chat.complete(history(turn), **spoken(ANSWERS[turn], who.eos))
    fresh.complete(history(3), **spoken(ANSWERS[3], who.eos))
    assert difference(chat, fresh, who.eos) <= 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_another_last_message_is_read_from_the_state_before_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    who = talker(name)
    chat, fresh = chat_of(who), chat_of(who)
    for turn in range(3):
        chat.complete(history(turn), **spoken(ANSWERS[turn], who.eos))
        if turn < 2:
            fresh.complete(history(turn), **spoken(ANSWERS[turn], who.eos))
    other = [*history(2)[:-1], {"role": "user", "content": "Who?"}]
    reused = chat.reusable_tokens(other)
    with reads() as found, caplog.at_level(logging.WARNING, "foveate"):
        chat.complete(other, **spoken("Ann", who.eos))
        fresh.say("Who?", **spoken("Ann", who.eos))
    assert found[0] == found[1] < reused
    assert reused + found[0] + 3 == stored(chat)
    assert difference(chat, fresh, who.eos) == 0.0
    assert not caplog.records


@pytest.mark.parametrize("name", FAMILIES[:4])  # Gemma 3's sliding windows cannot be cropped
def test_an_early_change_is_read_from_there_while_nothing_was_evicted(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    who = talker(name)
    chat, fresh = chat_of(who, EVERYTHING), chat_of(who, EVERYTHING)
    for turn in range(4):
        chat.complete(history(turn), **spoken(ANSWERS[turn], who.eos))
    fresh.complete(history(0), **spoken(ANSWERS[0], who.eos))
    expected, other = stored(fresh), history(3)
    other[2]["content"] = "And the tip?"
    assert chat.reusable_tokens(other) == expected
    with caplog.at_level(logging.WARNING, "foveate"):
        chat.complete(other, **spoken("Ann", who.eos))
    assert not [each for each in caplog.records if "again" in each.getMessage()]
    fresh.complete(other, **spoken("Ann", who.eos))
    assert difference(chat, fresh, who.eos) <= 1e-5


def changed_system(messages: list[Any]) -> dict[str, Any]:
    messages[0] = {"role": "system", "content": "Be kind."}
    return {}


def changed_tools(messages: list[Any]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "add"}}]}


def changed_image(messages: list[Any]) -> dict[str, Any]:
    messages[1]["content"][0]["image_url"]["url"] = url(1)
    return {}


def changed_text(messages: list[Any]) -> dict[str, Any]:
    messages[3]["content"] = "And the tip?"
    return {}


def changed_answer(messages: list[Any]) -> dict[str, Any]:
    messages[2]["content"] = "Perhaps."
    return {}


CHANGES = {
    changed_system: "the system message differs",
    changed_tools: "the tools differ",
    changed_image: r"messages\[1\] differs",
    changed_text: r"messages\[3\] differs",
    changed_answer: r"messages\[2\] differs",
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_beginning_is_read_again_with_one_warning(
    change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    who = talker("qwen2_vl")
    system = {"role": "system", "content": "Be short."}
    chat, fresh = chat_of(who), chat_of(who)
    for turn in range(3):
        chat.complete([system, *history(turn)], **spoken(ANSWERS[turn], who.eos))
    before, messages = chat._now.ids.shape[1], [system, *history(3)]
    how = change(messages)
    with caplog.at_level(logging.WARNING, "foveate"):
        assert chat.reusable_tokens(messages, how.get("tools")) == 0
        assert not caplog.records
        chat.complete(messages, **how, **spoken("Ann", who.eos))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("complete() reads all ")
    assert f"instead of continuing {before} stored tokens" in warning
    assert re.search(CHANGES[change], warning)
    fresh.complete(messages, **how, **spoken("Ann", who.eos))
    assert difference(chat, fresh, who.eos) == 0.0
    messages += [{"role": "assistant", "content": "Ann"}, {"role": "user", "content": "Why?"}]
    assert chat.reusable_tokens(messages) == stored(chat)


def test_a_failed_answer_with_other_tools_changes_nothing() -> None:
    who = talker("qwen2_vl")
    chat = chat_of(who)
    chat.complete(history(0), **spoken(ANSWERS[0], who.eos))
    before, template = chat._now, chat._turns.wording.template

    def fail() -> None:
        raise KeyError

    failing = LogitsProcessorList([Spoken([30, 31], fail)])
    with pytest.raises(KeyError):
        chat.complete(history(1), **changed_tools([]), logits_processor=failing, max_new_tokens=2)
    assert chat._now is before
    assert chat._turns.wording.template == template


def test_images_of_a_loaded_chat_are_read_again(tmp_path: Path) -> None:
    """Their pixels are unknown, so another image could be meant."""
    who = talker("llava")
    chat = chat_of(who)
    chat.complete(history(0), **spoken(ANSWERS[0], who.eos))
    chat.save(tmp_path / "chat.safetensors")
    loaded = foveate.Chat.load(tmp_path / "chat.safetensors", who.model, who.processor)
    assert chat.reusable_tokens(history(1)) == stored(chat)
    assert loaded.reusable_tokens(history(1)) == 0


def test_spaces_around_a_streamed_answer_do_not_count() -> None:
    who = talker("llava")
    chat = chat_of(who)
    pieces = "".join(chat.complete(history(0), stream=True, **spoken("Yes ", who.eos)))
    assert pieces == "Yes "
    messages = history(1)
    messages[1]["content"] = pieces
    assert chat.reusable_tokens(messages) == stored(chat)


def test_a_list_without_a_question_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ends with an answer"):
        chat_of(talker("llava")).complete([*history(0), {"role": "assistant", "content": "Yes"}])


def test_the_chats_system_message_is_part_of_every_list() -> None:
    who = talker("llava")
    chat = chat_of(who, system="Be short.")
    chat.complete(history(0), **spoken(ANSWERS[0], who.eos))
    assert chat.messages[0]["role"] == "system"
    assert chat.reusable_tokens(history(1)) == stored(chat)
