"""H2O while it decodes: one pair evicted per token, as in the authors' code.

The release was recorded with given attention weights. Keys that are the unit vectors, and queries
that are the logarithms of the weights, make a softmax that reproduces them.
"""

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.hf.attention.by_products import ModelAttention
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.phases import attend
from foveate.hf.layer.state import CacheState, Link
from foveate.stages.when import OverBudget

from .vectors import load

STEPS = 6


@pytest.fixture(scope="module")
def vectors():
    return load("h2o_real_drop")


def unit_keys(first, last, given):
    """Keys of the tokens [first, last): token i is the i-th unit vector."""
    heads, size = given["prefill_attn"].shape[1], given["prefill_attn"].shape[2] + STEPS
    return torch.eye(size)[first:last].expand(1, heads, last - first, size).contiguous()


def prefill_query(given):
    """Zeros stand for what the causal mask hides."""
    weights = given["prefill_attn"]
    logits = torch.where(weights > 0, weights.log(), 0.0)
    return torch.nn.functional.pad(logits, (0, STEPS))


def step_query(weights, columns, given):
    """The query that pays ``weights`` [1, h, 1, s] to the tokens ``columns`` [1, h, s]."""
    empty = torch.zeros(1, weights.shape[1], given["prefill_attn"].shape[2] + STEPS)
    return empty.scatter(2, columns, weights[:, :, 0].log())[:, :, None]


def attention(q, k, mask):
    logits = q @ k.transpose(2, 3)
    return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(-1)


def test_unit_keys_and_logarithms_reproduce_the_recorded_attention(vectors):
    given, _ = vectors
    n = given["prefill_attn"].shape[2]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    ours = attention(prefill_query(given), unit_keys(0, n, given), causal)
    assert_close(ours, given["prefill_attn"], rtol=1e-5, atol=1e-6)


def decode(given, args):
    """Runs the library's own cache layer; yields it after the prompt and after every step."""
    budget = args["hh_size"] + args["recent_size"]
    policy = foveate.h2o(budget=budget, recent=args["recent_size"]).but(when=OverBudget())
    n = given["prefill_attn"].shape[2]
    state = CacheState(policy, Link(), 1)
    state.arm(n)
    layer = FoveateLayer(state, 0, 0)
    seen = []

    def base(q, k, v, mask):
        """Plain attention, which also notes the weights of a decoding step."""
        weights = attention(q, k, mask)
        seen.append(weights)
        return (weights @ v).transpose(1, 2), None

    layer.update(unit_keys(0, n, given), given["prefill_value"])
    attention_of = ModelAttention(plain=base, masked=base)
    attend(layer, attention_of, prefill_query(given), None, 1.0)
    yield layer
    for step in range(STEPS):
        weights = given[f"step{step}_attn"]
        before = given["kept_idx_prefill" if step == 0 else f"kept_idx_step{step - 1}"]
        columns = torch.cat([before, torch.full_like(before[..., :1], n + step)], 2)
        layer.update(unit_keys(n + step, n + step + 1, given), given[f"step{step}_value"])
        attend(layer, attention_of, step_query(weights, columns, given), None, 1.0)
        assert_close(seen[-1], weights, rtol=1e-5, atol=1e-6)
        yield layer


def test_h2o_evicts_the_pair_that_the_release_evicts_at_every_step(vectors):
    given, args = vectors
    names = ["prefill", *(f"step{step}" for step in range(STEPS))]
    for name, layer in zip(names, decode(given, args), strict=True):
        assert torch.equal(layer.pairs.columns, given[f"kept_idx_{name}"]), name


def test_h2o_keeps_adding_up_scores_as_the_release_does(vectors):
    given, args = vectors
    names = ["prefill", *(f"step{step}" for step in range(STEPS))]
    for name, layer in zip(names, decode(given, args), strict=True):
        received = layer.memory.state["received"][0]
        assert_close(received, given[f"hh_score_{name}"], rtol=1e-5, atol=1e-5, msg=name)
