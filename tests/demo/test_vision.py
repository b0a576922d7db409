"""The demo model: stock classes, its own weights, right answers, and compression that is exact."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForImageTextToText,
    LlavaForConditionalGeneration,
    PixtralVisionModel,
)

import foveate
from foveate.errors import ModelNotFound
from foveate.hf.model.internals import CACHE
from foveate_demo import album, smollm2, vision

from .conftest import WHERE, Demo, ask

ANSWER = "Bruno's birthday: 2 November 1964"


def test_its_classes_are_those_of_transformers(demo: Demo) -> None:
    assert type(demo.model) is LlavaForConditionalGeneration
    assert type(demo.model.model.vision_tower) is PixtralVisionModel
    assert demo.model.config.image_token_id == demo.processor.tokenizer.vocab["<file_sep>"]
    assert not demo.model.training


def test_it_answers_from_the_images(demo: Demo) -> None:
    assert demo.answer() == ANSWER


def test_most_of_the_prompt_is_visual(demo: Demo) -> None:
    ids = demo.inputs["input_ids"][0]
    assert 200 <= len(ids) <= 700
    assert (ids == demo.model.config.image_token_id).float().mean() >= 0.6


def test_without_the_images_it_does_not_know(demo: Demo) -> None:
    blind = demo._replace(inputs=demo.processor(text=f"Question: {album.QUESTION}\nAnswer:"))
    assert blind.answer() != ANSWER


@pytest.mark.parametrize("method", ["mixkv", pytest.param("prefixkv", marks=pytest.mark.slow)])
def test_all_kept_changes_nothing(demo: Demo, method: str) -> None:
    with foveate.compress(demo.model, f"{method}:budget=100%") as session:
        assert demo.answer() == ANSWER
    assert session.stats.kept_tokens == demo.inputs["input_ids"].shape[1]


def test_less_kept_is_the_full_cache_with_the_rest_masked(demo: Demo) -> None:
    inputs = ask(demo.processor, album.images()[:1], WHERE)
    with foveate.compress(demo.model, "streaming_llm:budget=40%,sinks=4") as session:
        cache = session.prefill(**inputs)
        ids = inputs["input_ids"]
        whole = torch.cat([ids, torch.tensor([[253]])], 1)
        logits = demo.model(whole[:, -1:], **{CACHE: cache}).logits
        share = session.held_share()[0, : ids.shape[1]]
    kept = torch.cat([share > 0, torch.tensor([True])])
    seen = torch.ones(len(kept), len(kept)).tril().bool()
    seen[-1] = kept
    bias = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    images = {name: inputs[name] for name in ("pixel_values", "image_sizes")}
    masked = demo.model(whole, attention_mask=bias, **images).logits[:, -1:]
    assert 0.35 < kept.float().mean() < 0.45
    torch.testing.assert_close(logits, masked, atol=1e-4, rtol=0)


def test_a_batch_of_prompts_is_padded_and_answered_alike(demo: Demo, room: str) -> None:
    pages = album.images()
    three = "".join(f"Image {i}:\n<image>\n" for i in (1, 2, 3))
    texts = [
        f"<image>\nQuestion: {WHERE}\nAnswer:",
        f"{three}Question: {album.QUESTION}\nAnswer:",
    ]
    inputs = demo.processor(images=[pages[0], *pages], text=texts)
    out = demo.model.generate(**inputs, max_new_tokens=16, do_sample=False)
    said = demo.processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], True)
    assert [text.strip() for text in said] == [room, ANSWER]


def test_the_low_rank_update_is_added_to_the_weights(demo: Demo) -> None:
    plain, _ = smollm2.load()
    name = "layers.7.self_attn.v_proj.weight"
    with safe_open(vision.WEIGHTS / "lora.safetensors", framework="pt") as file:
        a, b = (file.get_tensor(f"model.{name}.{which}").float() for which in "AB")
    added = demo.model.model.language_model.get_parameter(name) - plain.model.get_parameter(name)
    assert added.abs().max() > 1e-4
    torch.testing.assert_close(added, b @ a, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_it_is_saved_and_loaded_as_any_other(demo: Demo, tmp_path: Path) -> None:
    demo.model.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert torch.equal(again(**demo.inputs).logits, demo.model(**demo.inputs).logits)


def test_what_was_trained_is_small() -> None:
    assert sum(path.stat().st_size for path in vision.WEIGHTS.iterdir()) <= 40e6


def test_an_incomplete_installation_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vision, "WEIGHTS", tmp_path)
    with caplog.at_level(logging.ERROR), pytest.raises(ModelNotFound, match="foveate\\[demo\\]"):
        vision.load()
