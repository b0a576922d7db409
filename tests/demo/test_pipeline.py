"""transformers' own pipeline on the demo model, with and without compression around it."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import ImageTextToTextPipeline, pipeline

import foveate
from foveate_demo import album

from .conftest import WHERE, Demo, ask


@pytest.fixture(scope="module")
def pipe(demo: Demo) -> ImageTextToTextPipeline:
    return pipeline("image-text-to-text", model=demo.model, processor=demo.processor)


def chat(question: str, images: Any) -> list[dict[str, Any]]:
    shown = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]


def said(pipe: ImageTextToTextPipeline, text: Any, **more: Any) -> list[str]:
    """What is answered to each prompt, greedily."""
    found = pipe(text=text, max_new_tokens=16, do_sample=False, return_full_text=False, **more)
    flat = [one[0] if isinstance(one, list) else one for one in found]
    return [one["generated_text"].strip() for one in flat]


def test_chats_are_answered_as_by_generate_alone_and_in_batches(
    pipe: ImageTextToTextPipeline, demo: Demo, room: str
) -> None:
    first, second, _ = album.images()
    other = "Where is it, and what is written?"
    chats = [chat(WHERE, [first]), chat(other, [second])]
    alone = [room, demo._replace(inputs=ask(demo.processor, [second], other)).answer()]
    assert len(set(alone)) == 2
    assert [said(pipe, one) for one in chats] == [[answer] for answer in alone]
    for size in (1, 2):
        assert said(pipe, chats, batch_size=size) == alone


def test_plain_prompts_may_have_images_and_need_none(
    pipe: ImageTextToTextPipeline, demo: Demo, room: str
) -> None:
    (image, *_), blind = album.images(), f"Question: {WHERE}\nAnswer:"
    seen = f"<image>\n{blind}"
    assert said(pipe, seen, images=image) == [room]
    assert said(pipe, [seen] * 2, images=[[image], [image]]) == [room] * 2
    without = demo._replace(inputs=demo.processor(text=blind)).answer()
    assert said(pipe, blind) == [without] != [room]


def test_an_answer_that_was_begun_is_gone_on_with(pipe: ImageTextToTextPipeline, room: str) -> None:
    image, *_ = album.images()
    parts = [{"type": "text", "text": room.split()[0]}]
    begun = [*chat(WHERE, [image]), {"role": "assistant", "content": parts}]
    (rest,) = said(pipe, begun)
    assert f"{room.split()[0]} {rest}" == room
    (full,) = pipe(text=begun, max_new_tokens=16, do_sample=False)
    assert full["generated_text"][-1]["content"] == [{"type": "text", "text": room}]


def test_inside_a_block_its_cache_is_compressed(pipe: ImageTextToTextPipeline, demo: Demo) -> None:
    """`pipeline("image-text-to-text")` | works | called inside a block of its model; a list of
    prompts and `batch_size=` as well
    """
    image, *_ = album.images()
    inside = demo._replace(inputs=ask(demo.processor, [image], WHERE))
    for spec in ("full", "snapkv:budget=20%"):
        with foveate.compress(demo.model, spec) as session:
            by_generate, bytes_kept = inside.answer(), session.stats.bytes_after
        with foveate.compress(demo.model, spec) as session:
            assert said(pipe, chat(WHERE, [image])) == [by_generate]
            assert session.stats.bytes_after == bytes_kept
    assert session.stats.bytes_after < 0.21 * session.stats.bytes_before
