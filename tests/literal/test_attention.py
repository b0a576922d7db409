"""All transcriptions: the attention they share, and how query heads count."""

import math

import pytest
import torch
from torch.testing import assert_close

from . import csp, david, lookm, mixkv
from .attention import attention, top
from .recorded import seeded


def test_attention_is_the_causal_softmax_of_scaled_products():
    q, k = seeded(4, 7, 8), seeded(2, 7, 8)
    logits = q @ k.repeat_interleave(2, 0).transpose(1, 2) / math.sqrt(8)
    logits = logits.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    assert_close(attention(q, k), logits.softmax(-1))


def test_of_equal_scores_the_earlier_is_on_top():
    assert top([1.0, 3.0, 2.0, 3.0, 2.0], 3) == [1, 3, 2]


@pytest.mark.parametrize(
    "per_head",
    [
        lambda q, k: lookm.importance(q, k),
        lambda q, k: david.scores(q, k, 3),
        lambda q, k: csp.scores(q, k, [False] * 4 + [True] * 5, 4, 2)[0],
        lambda q, k: csp.scores(q, k, [False] * 4 + [True] * 5, 4, 2)[1],
        lambda q, k: mixkv.scores(q, k, k, 3, mix="importance", intrinsic=None),
    ],
    ids=["lookm", "david", "csp self", "csp cross", "mixkv"],
)
def test_a_kv_head_scores_the_mean_of_its_query_heads(per_head):
    q, k = seeded(6, 9, 8), seeded(2, 9, 8)
    each = per_head(q, k.repeat_interleave(3, 0))
    assert_close(per_head(q, k), each.view(2, 3, -1).mean(1))
