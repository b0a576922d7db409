"""Figures of an answer, and of a conversation."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest
from PIL import Image

from foveate.chat.usage import AnswerMeter

from .busy import chat_of
from .conversations import Record, image
from .families import talker


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "internvl", "gemma3"])
def test_an_answer_counts_its_tokens_seconds_and_bytes(name: str) -> None:
    who, record = talker(name), Record()
    chat = chat_of(who, "snapkv:budget=30%,window=4")
    fed = total = 0  # tokens that the model has read, and those of the conversation
    answers = []
    for turn, eos in enumerate((None, who.eos, None)):
        started = time.perf_counter()
        answer = record.say(chat, turn, eos, happens=lambda: time.sleep(0.05))
        seconds, used = time.perf_counter() - started, answer.usage
        answers.append(used)
        prompt = chat._now.ids.shape[1] - len(answer.ids)
        assert (used.read, used.reused, used.generated) == (prompt - fed, fed, 4)
        assert used.read >= prompt - total > 0
        total = chat._now.ids.shape[1]
        fed = chat.held.seen
        assert 0 < used.first_token_seconds < seconds - 0.05
        assert 0.05 <= used.decode_seconds < seconds
        assert used.tokens_per_second == pytest.approx(3 / used.decode_seconds)
        assert used.stored_bytes == chat.held.bytes <= used.peak_bytes
    whole = chat.usage
    assert whole.answers == 3
    for field in ("read", "reused", "generated", "first_token_seconds", "decode_seconds"):
        assert getattr(whole, field) == pytest.approx(sum(getattr(a, field) for a in answers))
    assert whole.read + whole.generated == chat.held.seen + 3  # the last token is never read
    assert whole.stored_bytes == chat.held.bytes
    assert whole.peak_bytes == max(a.peak_bytes for a in answers)
    record.of(chat, 7, None, call="retry")
    assert chat.usage.answers == 3


def test_tokens_that_were_evicted_count_as_reused() -> None:
    who, record = talker("llava"), Record()
    chat = chat_of(who, "snapkv:budget=20,window=4")
    record.say(chat, 0)
    seen = chat.held.seen
    assert chat.held.tokens < seen
    assert record.say(chat, 1).usage.reused == seen


@pytest.mark.parametrize(
    ("spec", "measured"), [("snapkv:budget=30%,window=4", 2), ("full", 2), ("kivi", 5)]
)
def test_a_cache_that_only_grows_is_measured_twice_an_answer(
    spec: str, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, note_size = [], AnswerMeter.note_size
    monkeypatch.setattr(AnswerMeter, "note_size", lambda m: (calls.append(m), note_size(m)))
    Record().say(chat_of(talker("llava"), spec), 1)
    assert len(calls) == measured


def test_images_of_a_turn_that_waits_are_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, path = chat_of(talker("llava")), tmp_path / "page.png"
    image(0).save(path)
    opened, stock = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: (opened.append(a), stock(*a, **k))[1])
    chat._stops.append(Event())  # as if an earlier turn of this chat waited
    chat.say("What is the total?", images=[path], max_new_tokens=1)
    assert len(opened) == 1
