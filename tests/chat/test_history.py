"""Going back: the chat is then the one in which the later turns were never said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foveate
from foveate.errors import InvalidInput
from foveate.hf.attach.session import held_share
from foveate.hf.layer.support import foveate_layers
from tests.pairs import by_turns

from .busy import chat_of
from .conversations import Record, image
from .families import talker
from .test_bytes import METHODS, tensors_of

FAMILIES = ["llava", "qwen2_vl", "internvl", "gemma3"]
ALL, SOME = "snapkv:budget=100%,window=4", "adakv:budget=30%,window=4"
READ_AGAIN = "are read again"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says about turns that are read again."""
    caplog.set_level(logging.WARNING, "foveate")
    return lambda: [r.getMessage() for r in caplog.records if READ_AGAIN in r.getMessage()]


def said(name: str, spec: str, *turns: int, **settings: Any) -> foveate.Chat:
    chat, record = chat_of(talker(name), spec, **settings), Record()
    for turn in turns:
        record.say(chat, turn, talker(name).eos if turn % 2 else None)
    return chat


def assert_same(chat: foveate.Chat, other: foveate.Chat) -> None:
    """Both have the same pairs, messages and tokens, and answer the next turn the same."""
    assert [m["role"] for m in chat.messages] == [m["role"] for m in other.messages]
    assert torch.equal(chat._now.ids, other._now.ids)
    assert (chat.held.seen, chat.held.tokens) == (other.held.seen, other.held.tokens)
    layers = [foveate_layers(one._now.cache) for one in (chat, other)]
    for mine, theirs in zip(*layers, strict=True):
        pairs = [layer.pairs.padded() for layer in (mine, theirs)]
        for got, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    record, expected = Record(), Record()
    for turn in (4, 3):
        record.say(chat, turn)
        expected.say(other, turn)
    for got, logits in zip(record.logits, expected.logits, strict=True):
        torch.testing.assert_close(got, logits, atol=1e-5, rtol=0)


@by_turns(name=FAMILIES, spec=[ALL, SOME], keep=["0", "1", "3"], back=["1", "3"])
def test_after_undo_a_chat_is_as_if_the_turns_had_not_been(
    name: str, spec: str, keep: str, back: str, warnings: Callable[[], list[str]]
) -> None:
    chat = said(name, spec, 0, 1, 2, 3, keep_turns=int(keep))
    chat.undo(int(back))
    is_stored = int(keep) >= int(back)
    is_cropped = spec == ALL and name != "gemma3"  # whose windows lost their earliest pairs
    tokens = chat._now.ids.shape[1]
    expected = [] if is_stored or is_cropped else [f"the {tokens} tokens before turn"]
    assert len(warnings()) == len(expected)
    assert all(part in line for part, line in zip(expected, warnings(), strict=True))
    assert_same(chat, said(name, spec, *range(4 - int(back))))


@by_turns(name=FAMILIES, method=METHODS, budget=["64MB", "24KB"])
def test_undo_is_exact_for_every_way_to_store_and_to_compress(
    name: str, method: str, budget: str
) -> None:
    spec = method.format(budget)
    chat = said(name, spec, 0, 1, 2, keep_turns=0)
    chat.undo()
    assert_same(chat, said(name, spec, 0, 1))


def test_undoing_all_turns_leaves_an_empty_chat() -> None:
    chat = said("llava", SOME, 0, 1)
    chat.undo(2)
    assert (chat.messages, chat.held.seen, chat.usage.answers) == ([], 0, 0)
    for turns in (1, 0):
        with pytest.raises(InvalidInput, match=r"there is no turn to answer again|from 1 on"):
            chat.undo(turns)


@by_turns(name=FAMILIES, spec=[ALL, SOME])
def test_an_earlier_turn_is_edited(name: str, spec: str) -> None:
    chat, record = said(name, spec, 0, 1, 2, 3), Record()
    record.of(chat, 8, None, "Which is newer?", call="edit", turn=2)
    other, expected = said(name, spec, 0, 1), Record()
    expected.of(other, 8, None, "Which is newer?", images=[image(1), image(2)])
    torch.testing.assert_close(record.logits[0], expected.logits[0], atol=1e-5, rtol=0)
    assert_same(chat, other)
    with pytest.raises(InvalidInput, match="no turn 9 to go back to"):
        chat.edit("Why?", turn=9)


@by_turns(name=FAMILIES, spec=[ALL, SOME])
def test_a_loaded_chat_answers_its_latest_turn_again(
    name: str, spec: str, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    who, chat = talker(name), said(name, spec, 0, 1)
    loaded = foveate.Chat.load(chat.save(tmp_path / "chat"), who.model, who.processor)
    assert (loaded.usage, loaded.held) == (chat.usage, chat.held)
    for one in (chat, loaded):
        Record().of(one, 7, None, call="retry")
    assert not warnings()
    assert_same(loaded, chat)


def test_a_loaded_chat_reads_texts_again_but_not_images_without_pixels(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    who = talker("qwen2_vl")
    for turns in ((1, 3, 5), (0, 1, 3)):
        chat = said("qwen2_vl", SOME, *turns, keep_turns=0)
        loaded = foveate.Chat.load(chat.save(tmp_path / "chat"), who.model, who.processor)
        if 0 in turns:
            before = loaded.held, loaded.messages
            with pytest.raises(InvalidInput, match="no pixels"):
                loaded.undo()
            assert (loaded.held, loaded.messages) == before
        else:
            loaded.undo()
            assert_same(loaded, said("qwen2_vl", SOME, *turns[:-1]))
    assert len(warnings()) == 1


def test_earlier_states_hold_no_pairs_once_something_is_evicted_or_while_nothing_is() -> None:
    chat = said("llava", ALL, 0, 1, 2, 3, keep_turns=0)
    assert chat.held.before == 0
    for record in chat._now.turns[1:]:
        assert record.before is not None
        assert all(layer.stored is None for layer in foveate_layers(record.before.cache))
    chat = said("llava", SOME, 0, 1, 2, 3, keep_turns=2)
    kept = [record.before for record in chat._now.turns]
    assert [before is None for before in kept] == [True, True, False, False]
    assert chat.held.before == sum(tensors_of(b.cache) for b in kept if b is not None) > 0


def test_a_fork_goes_back_by_itself() -> None:
    chat = said("llava", ALL, 0, 1, 2)
    branch = chat.fork()
    branch.undo(2)
    assert len(chat.messages) == 6
    assert_same(branch, said("llava", ALL, 0))
    assert_same(chat, said("llava", ALL, 0, 1, 2))


@by_turns(name=FAMILIES, spec=[SOME, "snapkv:budget=30%,window=4"])
def test_a_short_conversation_is_read_again_and_compressed_once(name: str, spec: str) -> None:
    who, record = talker(name), Record()
    chat = said(name, spec, 0, 1, 2, reread=10_000)
    history, before = chat.messages, chat.held
    with record.listening():
        record.say(chat, 3)
    ids, answer = chat._now.ids.split([chat._now.ids.shape[1] - 4, 4], dim=1)
    types = {kind: row[:, : ids.shape[1]] for kind, row in chat._now.types.items()}
    media, mask = record.given[0], torch.ones_like(ids)
    with foveate.compress(who.model, spec) as session, torch.no_grad():
        cache = session.prefill(input_ids=ids, attention_mask=mask, **types, **media)
        once = session.held_share()
        logits = who.model(input_ids=answer[:, :-1], past_key_values=cache).logits[0]
    torch.testing.assert_close(record.logits[0][1:], logits, atol=1e-5, rtol=0)
    shares = [
        held_share(foveate_layers(one._now.cache))[:, : ids.shape[1]]
        for one in (chat, said(name, spec, 0, 1, 2, 3))
    ]
    assert torch.equal(shares[0], once)
    assert not torch.equal(shares[1], once)
    assert [len(turn.images) for turn in chat.held.by_turn] == [1, 0, 2, 0]
    assert chat._now.turns[-1].usage.reused == 0
    chat.undo()
    assert (chat.held[:3], chat.messages) == (before[:3], history)


def test_only_conversations_of_at_most_reread_tokens_lose_nothing_more() -> None:
    tokens = said("llava", SOME, 0, 1)._now.ids.shape[1]
    reused = [
        said("llava", SOME, 0, 1, 2, reread=limit)._now.turns[-1].usage.reused
        for limit in (0, tokens - 1, tokens)
    ]
    assert reused[0] == reused[1] > reused[2] == 0
    whole = said("llava", ALL, 0, 1, 2, reread=10_000)
    assert whole._now.turns[-1].usage.reused == reused[0]  # nothing was evicted


def test_a_loaded_chat_without_pixels_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    who, chat = talker("llava"), said("llava", SOME, 0, 1, reread=10_000)
    loaded = foveate.Chat.load(chat.save(tmp_path / "chat"), who.model, who.processor)
    for turn in (3, 5):
        Record().say(loaded, turn)
        assert loaded._now.turns[-1].usage.reused
    assert caplog.text.count("reread=10000 has no effect") == 1
