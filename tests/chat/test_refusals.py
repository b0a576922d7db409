"""What a chat cannot do is said in a sentence; and what holds of it for ever, and in threads."""

from __future__ import annotations

import copy
import time
from threading import Thread

import pytest
import torch
from transformers import LogitsProcessorList

import foveate
from foveate.chat import answering
from foveate.errors import FoveateError, InvalidInput, InvalidParameter, UnsupportedModel
from tests import zoo
from tests.core.users import unchecked
from tests.zoo.directory import tokenizer as text_tokenizer

from .conversations import TURNS, Record, Spoken, image, words
from .families import talker

SHORT = {"max_new_tokens": 3, "do_sample": False}


def chat(spec: str = "snapkv:budget=30%,window=4", **how) -> foveate.Chat:
    who = talker("llava")
    return foveate.Chat(who.model, who.processor, spec, **how)


REFUSED = {
    "beams": ({"num_beams": 3}, "num_beams=3: a chat gives one answer at a time"),
    "several": ({"num_return_sequences": 2}, "num_return_sequences=2: a chat"),
    "its cache": ({"past_key_values": object()}, "past_key_values=... is set by a chat itself"),
    "no image": ({"images": [image(0), 7]}, "images[1] is of type 'int': give a PIL image"),
    "a missing file": ({"images": ["none.png"]}, "none.png"),
    "no message": ({"messages": ["Hello"]}, "is no message"),
    "an unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "has the part {'type': 'smell'}",
    ),
    "no pixels": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "has no pixels",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_turn_that_cannot_be_said_is_refused_and_changes_nothing(case: str) -> None:
    mine, (how, sentence) = chat(), REFUSED[case]
    mine.say("Hello", **SHORT)
    before = mine.messages, mine.held
    with pytest.raises(InvalidInput) as refused, unchecked():
        mine.say("And now?", **{**SHORT, **how})
    assert sentence in str(refused.value)
    assert (mine.messages, mine.held) == before
    mine.say("And now?", **SHORT)


def test_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the turn is empty"):
        chat().say()


def test_images_that_are_read_through_cross_attention_are_refused() -> None:
    """Mllama's masks are of a whole conversation."""
    who = talker("llava")

    class Crossing(type(who.processor)):
        def __call__(self, *args, **kwargs):
            return {**super().__call__(*args, **kwargs), "cross_attention_mask": torch.ones(1, 9)}

    processor = copy.copy(who.processor)
    processor.__class__ = Crossing
    with pytest.raises(UnsupportedModel, match="through cross-attention"):
        foveate.Chat(who.model, processor).say("Hello")


def test_an_older_release_that_masks_a_later_image_wrongly_is_refused(monkeypatch) -> None:
    who = talker("gemma3")
    mine = foveate.Chat(who.model, who.processor)
    mine.say("Hello", images=[image(0)], **SHORT)
    monkeypatch.setattr(answering, "RELEASE", "5.22.2")
    with pytest.raises(UnsupportedModel, match=r"transformers 5\.22\.2 masks a new image"):
        mine.say("And this?", images=[image(1)])
    mine.say("And now?", **SHORT)


def test_a_closed_chat_holds_nothing() -> None:
    with chat() as mine:
        mine.say("Hello", **SHORT)
    assert mine.held == (0.0, 0, 0, 0, ())
    with pytest.raises(InvalidInput, match="is closed"):
        mine.say("Hello")


def test_what_cannot_be_compressed_is_refused_before_anything_is_said() -> None:
    words = text_tokenizer()
    words.chat_template = "{%- for m in messages -%}{{- m.content + ' ' -}}{%- endfor -%}"
    with pytest.raises(FoveateError, match="none of its layers has full attention"):
        foveate.Chat(zoo.build("sliding"), words)
    with pytest.raises(InvalidParameter, match="rewrites='drop' is unknown"), unchecked():
        foveate.Chat(zoo.build("llama"), words, rewrites="drop")


@pytest.mark.parametrize("budget", ["40", "30KB"])
def test_a_budget_in_tokens_or_bytes_bounds_what_is_held_for_ever(budget: str) -> None:
    mine, record = chat(f"snapkv:budget={budget},window=4"), Record()
    held = []
    for number in range(12):
        record.say(mine, number % len(TURNS))
        held.append(mine.held)
    answer = len(words(0)) - 1  # of which the last one has not been read yet
    most = 40 if budget == "40" else max(one.tokens for one in held[:3]) - answer
    assert max(one.tokens for one in held) <= most + answer
    assert held[-1].seen > 400
    assert held[-1].bytes <= held[2].bytes
    assert held[-1].before <= held[2].bytes


def test_a_share_grows_with_the_conversation() -> None:
    mine, record = chat(), Record()
    held = [record.say(mine, number) and mine.held for number in range(4)]
    assert [one.tokens for one in held] == sorted(one.tokens for one in held)
    assert all(0.3 <= one.share < 0.36 for one in held)


def test_a_second_thread_waits_for_the_answer() -> None:
    """Forks of a chat, and chats of one model, take turns."""
    mine, order = chat(), []
    other = mine.fork()

    def late() -> None:
        other.say("Second", **SHORT)
        order.append("second")

    thread = Thread(target=late)

    def begin() -> None:
        thread.start()
        time.sleep(0.2)
        order.append("first")

    spoken = LogitsProcessorList([Spoken(words(0), begin)])
    mine.say("First", logits_processor=spoken, max_new_tokens=4)
    thread.join()
    assert order == ["first", "second"]
    assert [len(one.messages) for one in (mine, other)] == [2, 2]


def test_leaving_a_stream_stops_it_and_the_chat_goes_on() -> None:
    mine = chat()
    stream = mine.say("Count", stream=True, max_new_tokens=4000, do_sample=False)
    for _ in stream:
        break
    said = stream.answer
    assert said.ended == "stopped"
    assert mine.messages[-1]["content"][0]["text"] == said.text
    mine.say("Go on", **SHORT)


def test_an_error_in_a_stream_is_raised_where_it_is_read() -> None:
    def fail() -> None:
        raise OSError("the disk")

    mine = chat()
    spoken = LogitsProcessorList([Spoken(words(0), fail)])
    stream = mine.say("Hello", stream=True, logits_processor=spoken, max_new_tokens=4)
    with pytest.raises(OSError, match="the disk"):
        list(stream)
    assert mine.messages == []
    mine.say("Hello", **SHORT)


def test_the_model_is_as_it_was() -> None:
    model, before = talker("llava").model, dict(vars(talker("llava").model))
    mine = chat()
    mine.say("Hello", **SHORT)
    assert dict(vars(model)) == before
    with foveate.compress(model, "snapkv:budget=30%") as session:
        session.prefill(input_ids=torch.arange(20, 40)[None])
