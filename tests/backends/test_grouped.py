"""Query heads that share a KV head: the same attention as over keys that are repeated for each."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from foveate.cache.pairs import DensePairs
from foveate.hf.attention.by_products import ModelAttention
from foveate.hf.attention.dispatch import Queries, compute_attention
from foveate.hf.attention.grouped import attend_by_head, attend_folded
from foveate.hf.attention.masks import MaskFacts, PassView, for_model

B, HEADS, GROUPS, PAIRS, D, SCALE = 2, 3, 4, 300, 16, 0.3


def drawn(queries, dtype):
    generator = torch.Generator().manual_seed(queries)
    shapes = ((B, HEADS * GROUPS, queries, D), (B, HEADS, PAIRS, D), (B, HEADS, PAIRS, D))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def visible(heads, queries):
    """Each query sees some pairs; a padding query none."""
    seen = torch.rand(B, heads, queries, PAIRS, generator=torch.Generator().manual_seed(1)) < 0.4
    seen[:, :, -1, 0] = True
    if queries > 1:
        seen[1, :, 0] = False
    return seen


def stock(q, k, v, mask):
    module = SimpleNamespace(num_key_value_groups=GROUPS, is_causal=True)
    return sdpa_attention_forward(module, q, k, v, mask, scaling=SCALE)[0]


@pytest.mark.parametrize("additive", [None, torch.float32], ids=["boolean", "additive"])
@pytest.mark.parametrize("heads", [1, HEADS], ids=["one mask", "a mask a head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_head_by_head_is_transformers_own_bit_for_bit(dtype, heads, additive):
    q, k, v = drawn(70, dtype)
    mask, kind = visible(heads, 70), additive and dtype
    expected = stock(q, k, v, for_model(mask, GROUPS if heads > 1 else 1, kind))
    assert torch.equal(attend_by_head(q, k, v, SCALE, for_model(mask, 1, kind)), expected)


@pytest.mark.parametrize("heads", [1, HEADS], ids=["one mask", "a mask a head"])
def test_one_query_folded(heads):
    q, k, v = drawn(1, torch.float32)
    mask = visible(heads, 1)
    expected = stock(q, k, v, for_model(mask, GROUPS if heads > 1 else 1, None))
    assert_close(attend_folded(q, k, v, SCALE, mask), expected)
    assert_close(attend_folded(q, k, v, SCALE), stock(q, k, v, torch.ones_like(mask)[:, :1]))


@pytest.mark.parametrize("heads", [1, HEADS * GROUPS], ids=["one mask", "a mask a query head"])
def test_over_all_pairs_the_models_own_mask_is_followed(heads):
    q, k, v = drawn(PAIRS, torch.float32)
    mask = visible(heads, PAIRS)

    def plain(*given):
        return stock(*given), None

    attention = ModelAttention(plain=plain, masked=plain, is_sdpa=True)
    facts = MaskFacts(torch.zeros(B, dtype=torch.long), False, False)
    view = PassView(mask, (B, PAIRS, PAIRS), None, None, q.device, facts)
    queries = Queries(q, view, SCALE, attention, PAIRS, lambda: facts)
    pairs = DensePairs.empty(k, v, PAIRS)
    pairs.append(k, v)
    assert torch.equal(compute_attention(queries, pairs, 0.0).output, stock(q, k, v, mask))
