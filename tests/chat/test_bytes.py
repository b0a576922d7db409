"""A budget in bytes holds between turns, for all that a chat stores for its answers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import foveate
from foveate.chat import answering
from foveate.chat.storage import trim
from foveate.hf.layer.support import foveate_layers
from tests.conformance.oracle import event_of
from tests.pairs import by_turns

from .busy import chat_of
from .conversations import TURNS, Record
from .families import talker
from .test_turns import EXACT

METHODS = {
    "dense": "snapkv:budget={},window=4",
    "ragged": "adakv:budget={},window=4",
    "over all layers": "kvzip:budget={}",
    "in codes": "snapkv+kivi(bits=4,residual=8):budget={},window=4",
    "while it grows": "snapkv:budget={},window=4,when=over_budget",
}


def tensors_of(cache: Any) -> int:
    """Bytes of the storages behind every tensor of the layers' pairs, counted by themselves."""
    found = {}
    for layer in foveate_layers(cache):
        todo, seen = [vars(layer.pairs)], set()
        while todo:
            for value in todo.pop().values():
                if isinstance(value, torch.Tensor):
                    storage = value.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
                elif hasattr(value, "__dict__") and id(value) not in seen:
                    seen.add(id(value))
                    todo.append(vars(value))
    return sum(found.values())


@by_turns(name=["llava", "qwen2_vl", "internvl"], method=METHODS, budget=["32KB", "64KB"])
def test_what_a_chat_stores_between_turns_fits_its_budget(
    name: str, method: str, budget: str
) -> None:
    who, record = talker(name), Record()
    chat = chat_of(who, method.format(budget), keep_turns=0)
    for turn in range(8):
        record.say(chat, turn % len(TURNS))
        assert chat.held.bytes <= 1000 * int(budget[:-2])
        assert chat.held.before == 0
        cache = chat._now.cache
        assert tensors_of(cache) <= 1000 * int(budget[:-2])
        answer = range(chat._now.ids.shape[1] - 4, chat._now.ids.shape[1] - 1)
        for layer in foveate_layers(cache):
            for columns in layer.pairs.columns[0]:
                assert {*answer} <= {*columns.tolist()}


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_pairs_leave_for_the_budget_after_an_answer_and_not_while_it_is_generated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, record, events = talker(name), Record(), []

    def noted(cache: Any) -> None:
        events.append(event_of(cache))
        trim(cache)
        events.append(event_of(cache, now=True))

    monkeypatch.setattr(answering, "trim", noted)
    chat = chat_of(who, "snapkv:budget=32KB,window=4")
    with record.listening():
        for turn in range(len(TURNS)):
            record.say(chat, turn)
    record.events = events
    assert record.differs(who, chat, masked=True) <= EXACT


def test_the_copy_for_retry_is_counted_apart_and_can_be_left_out() -> None:
    who = talker("llava")
    with_copy, without = (
        chat_of(who, "snapkv:budget=32KB,window=4", keep_turns=turns) for turns in (1, 0)
    )
    for chat in (with_copy, without):
        Record().say(chat, 0)
        Record().say(chat, 1)
    assert with_copy.held[:3] == without.held[:3]
    assert 0 < with_copy.held.before <= 32_000
    Record().of(with_copy, 1, None, call="retry")
    Record().say(without, 2)


def test_a_loaded_chat_stores_no_more_than_the_one_that_was_saved(tmp_path: Path) -> None:
    who = talker("llava")
    chat, record = chat_of(who, "adakv:budget=32KB,window=4"), Record()
    for turn in range(2):
        record.say(chat, turn)
    path = chat.save(tmp_path / "chat.safetensors")
    loaded = foveate.Chat.load(path, who.model, who.processor)
    assert loaded.held[:3] == chat.held[:3]
    assert loaded.held.bytes <= 32_000


def test_a_budget_that_does_not_hold_the_newest_answer_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    who, tokens = talker("llava"), list(range(20, 80))
    chat, record = chat_of(who, "snapkv:budget=9KB,window=4"), Record()
    with caplog.at_level(logging.WARNING, "foveate"):
        for turn in range(2):
            record.of(chat, turn, None, "Tell me", tokens=tokens)
    said = [r.getMessage() for r in caplog.records if "latest answer" in r.getMessage()]
    assert len(said) == 1
    assert "budget 9KB is too small for the latest answer" in said[0]
    answer = range(chat._now.ids.shape[1] - 60, chat._now.ids.shape[1] - 1)
    columns = foveate_layers(chat._now.cache)[0].pairs.columns[0, 0].tolist()
    assert {*answer} <= {*columns}
    record.say(chat, 2)
    assert chat.held.bytes <= 9_000
