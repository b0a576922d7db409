"""What is counted without numbers is what PyTorch's allocator hands out when the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, PreTrainedModel

from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import CACHE
from foveate.memory.attention import use_attention
from foveate.memory.counting import Counting, run_once
from tests import zoo

TOKENS = 400
WORKSPACE = 4 * 64 * (TOKENS + 2 + 16)  # bytes of a thread of SDPA's kernel: heads are of 16
OFFSETS = 8  # bytes: models with M-RoPE note those of the latest prompt on themselves


def allocated(work: Callable[[], Any]) -> int:
    """The most that the allocator of the CPU had handed out at once."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def counted(model: PreTrainedModel, inputs: zoo.Inputs, attention: Any) -> Counting:
    """The same model's code on tensors without numbers."""
    bare, counting = model.to("meta"), Counting()
    given = {k: v.to("meta") if v.is_floating_point() else v for k, v in inputs.items()}
    counting.exclude([*bare.parameters(), *bare.buffers(), *given.values()])
    decoder = find(bare, text_config(bare)).decoder
    with (
        torch.no_grad(),
        use_attention(bare, attention),
        run_once(bare, decoder, counting),
        counting,
    ):
        bare(**given, use_cache=True, logits_to_keep=1)
    return counting


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", zoo.VLM_FAMILIES)
def test_the_peak_is_the_allocators(name: str, attention: Any) -> None:
    if (name, attention) == ("llava_deepseek", "sdpa"):
        pytest.skip("CPUs have no fused kernel for values of another size than keys")
    model, inputs = zoo.fresh(name), zoo.prompt(name, lengths=(TOKENS,), images=2)
    with use_attention(model, attention):
        work = lambda: model(**inputs, use_cache=True, logits_to_keep=1)  # noqa: E731
        work()  # what is made once and kept
        real = allocated(work)
    found = counted(model, inputs, attention)
    assert real - WORKSPACE * torch.get_num_threads() <= found.peak <= real
    assert found.live <= OFFSETS


def test_a_block_that_is_not_run_again_counts_as_if_it_were() -> None:
    inputs = zoo.prompt("qwen2_5_vl", lengths=(200,), images=2)
    with_all, operators = counted_operators(inputs, every=True)
    with_one, fewer = counted_operators(inputs, every=False)
    assert with_one == with_all
    assert fewer < operators


def counted_operators(inputs: zoo.Inputs, every: bool) -> tuple[int, int]:
    """The peak of a tower of six blocks, and how many operators ran."""
    ran = 0

    class Each(Counting):
        def _run(self, *given: Any) -> Any:
            nonlocal ran
            ran += 1
            return super()._run(*given)

    model = zoo.fresh("qwen2_5_vl")
    blocks = model.model.visual.blocks
    blocks.extend([blocks[0], blocks[1]] * 2)
    model, counting = model.to("meta"), Each()
    counting.exclude([*model.parameters(), *model.buffers()])
    pixels = inputs["pixel_values"].to("meta")
    counting.exclude([pixels])
    but = model if every else model.model.language_model
    with torch.no_grad(), use_attention(model, "sdpa"), run_once(model, but, counting), counting:
        model.get_image_features(pixels, inputs["image_grid_thw"])
    return counting.peak, ran


def test_a_cache_is_counted_until_it_is_let_go() -> None:
    model, inputs = zoo.fresh("llava").to("meta"), zoo.prompt("llava", lengths=(50,))
    counting, cache = Counting(), DynamicCache(config=model.config.get_text_config())
    counting.exclude([*model.parameters(), *model.buffers()])
    pixels = inputs["pixel_values"].to("meta")
    counting.exclude([pixels])
    with torch.no_grad(), use_attention(model, None), counting:
        model(**{**inputs, "pixel_values": pixels}, **{CACHE: cache})
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert counting.live == held
    del cache
    assert counting.live == 0
