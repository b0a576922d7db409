"""Answers over kept latents with absorbed projections equal those over expanded keys and values."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING

import foveate
from foveate.hf.attention import absorbed
from foveate.hf.attention.absorbed import readable_projections
from foveate.hf.layer.projection import EXPAND, with_latents
from tests.census import build
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.pairs import by_turns

pytestmark = pytest.mark.filterwarnings("ignore")  # of stock models
TYPES = ("deepseek_v3", "mistral4", "kimi_k25")
POLICIES = {
    "window": "snapkv:budget=40%,window=4",
    "in place": "streaming_llm:budget=16",
    "softmax-n": "csp:budget=40%,decode_n=1.5",
    "merged": "lookm:budget=40%",
}
MODES = {
    "one row": ((40,), {}),
    "padded": ((23, 31, 40), {}),
    "drafts": ((40,), {"prompt_lookup_num_tokens": 3}),
    "chunks": ((40,), {"prefill_chunk_size": 16}),
    "beams": ((23, 40), {"num_beams": 2}),
}


def specimen_of(name):
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {name}")
    specimen = build(name)
    if not with_latents(specimen.model):
        pytest.skip(f"this release of transformers caches the expanded keys of {name}")
    return specimen


@by_turns(name=TYPES, policy=POLICIES, mode=MODES, rounds=2)
def test_answers_are_those_of_expanded_latents(name, policy, mode):
    specimen, (lengths, how) = specimen_of(name), mode
    model, inputs = specimen.model, specimen.prompt(lengths)
    answers, calls = [], 0
    for find in (readable_projections, lambda *_: None):
        with (
            mock.patch.object(absorbed, "readable_projections", find),
            mock.patch.object(
                absorbed, "latent_attention", wraps=absorbed.latent_attention
            ) as ours,
            foveate.compress(model, policy),
        ):
            answers.append(model.generate(**inputs, **{**GREEDY, **how}))
            calls += ours.call_count
    steps = len(answers[0].logits) - 1
    assert calls >= (steps if how else steps * model.config.get_text_config().num_hidden_layers)
    assert difference(*answers) <= TOLERANCE


@pytest.mark.parametrize(
    ("implementation", "policy", "absorbs"),
    [
        ("sdpa", "snapkv:budget=100%", False),
        ("sdpa", "snapkv:budget=40%,window=4", True),
        ("eager", "snapkv:budget=40%,window=4", False),  # it returns attention weights
        ("sdpa", "h2o:budget=16,when=over_budget", False),  # its score reads each step's weights
    ],
)
def test_it_is_left_where_results_need_expanded_keys(implementation, policy, absorbs):
    specimen = specimen_of("deepseek_v3")
    model, inputs = specimen.model, specimen.prompt((40,))
    model.set_attn_implementation(implementation)
    with (
        mock.patch.object(absorbed, "latent_attention", wraps=absorbed.latent_attention) as ours,
        foveate.compress(model, policy),
    ):
        model.generate(**inputs, **GREEDY)
    assert bool(ours.call_count) == absorbs


class Quantised(nn.Linear):
    """A projection whose weight is not what it multiplies by."""


def hooked(linear):
    linear.register_forward_hook(lambda *_: None)
    return linear


def offloaded(linear):
    linear.forward = linear.forward
    return linear


@pytest.mark.parametrize(
    "change",
    [
        lambda old: Quantised(old.in_features, old.out_features, bias=False),
        lambda old: nn.Linear(old.in_features, old.out_features, bias=True),
        lambda old: old.to(torch.bfloat16),
        lambda old: nn.Sequential(old),
        hooked,
        offloaded,
    ],
    ids=["quantised", "bias", "dtype", "adapter", "hooked", "offloaded"],
)
def test_other_weights_than_plain_ones_are_not_absorbed(change):
    module = with_latents(specimen_of("deepseek_v3").model)[0]
    q = torch.zeros(1, 4, 1, 24)
    assert readable_projections(getattr(module, EXPAND), q) is not None
    module.kv_b_proj = change(module.kv_b_proj)
    assert readable_projections(getattr(module, EXPAND), q) is None


def test_the_projections_are_those_of_the_models_expansion():
    for name in TYPES:
        module = with_latents(specimen_of(name).model)[0]
        latents = torch.randn(1, 1, 3, module.kv_lora_rank)
        rotary = torch.randn(1, 1, 3, module.qk_rope_head_dim)
        keys, values = getattr(module, EXPAND)(latents, rotary)
        up_keys, up_values = readable_projections(getattr(module, EXPAND), keys)
        torch.testing.assert_close(latents @ up_keys.mT, keys[..., : up_keys.shape[1]])
        torch.testing.assert_close(latents @ up_values.mT, values)
