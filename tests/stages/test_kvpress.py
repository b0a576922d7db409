"""Scorers with kvpress's signature keep what Foveate's own scores of the same formula keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import foveate
from foveate.errors import InvalidParameter
from foveate.stages.score import FromKvpress
from foveate.stages.select import TopK
from tests.methods.visual import visual

from .layers import random_layer


class Norm:
    """As KnormPress."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return -keys.norm(dim=-1)


class Window:
    """As SnapKVPress, with attention at hand."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        assert hidden_states.shape[1] > 4, "longer than the window"
        b, h, n, _ = keys.shape
        groups = module.config.num_attention_heads // module.config.num_key_value_heads
        scores = F.avg_pool1d(attentions[..., -4:, :-4].mean(dim=-2), 5, padding=2, stride=1)
        scores = scores.view(b, h, groups, n - 4).mean(2)
        return F.pad(scores, (0, 4), value=scores.max().item() + 1)


class Received:
    """As ObservedAttentionPress, but for the division by the number of queries."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return attentions.sum(2).view(1, keys.shape[1], -1, keys.shape[2]).mean(2)


class Projecting:
    """Needs the model."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return module.q_proj(hidden_states)


class Rotating:
    """Needs positions."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return kwargs["position_embeddings"]


class Misshapen:
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys.norm(dim=-1).mean(1)


def of(press, attention=False, **select):
    return foveate.knorm(budget=12).but(
        score=FromKvpress(press=press, attention=attention), select=TopK(**select)
    )


@pytest.mark.parametrize(
    ("policy", "own"),
    [
        (of(Norm()), foveate.knorm(budget=12)),
        (of(Window(), True), foveate.snapkv(budget=12, window=4)),
        (of(Received(), True, recent=6), foveate.h2o(budget=12)),
    ],
    ids=["norm", "window", "received"],
)
def test_the_same_formula_keeps_the_same(policy, own):
    given = visual([30, 21, 40], g=2, depth=2)
    for ours, theirs in zip(given.keeps(policy), given.keeps(own), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize(
    ("press", "attention", "says"),
    [
        (Projecting(), False, "Projecting needs more than keys and values: try attention=True"),
        (Rotating(), True, "Rotating needs more than keys and values and attention"),
        (Received(), False, "try attention=True"),
        (Misshapen(), False, r"scores of shape \(1, 30\), expected \(1, 2, 30\)"),
    ],
)
def test_what_needs_more_is_refused_by_name(press, attention, says):
    with pytest.raises(InvalidParameter, match=says):
        visual([30]).keeps(of(press, attention))


def test_what_is_no_press_is_refused():
    with pytest.raises(InvalidParameter, match="has no method score"):
        FromKvpress(press="KnormPress")


def test_attention_of_part_of_a_prompt_is_refused():
    with pytest.raises(InvalidParameter, match="3 queries for 30 slots"):
        FromKvpress(press=Received(), attention=True)(random_layer((30,), m=3))
