"""A long window's attention is made once, for the output and the score; nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import foveate
from foveate.cache.layer import Scores, WindowWeights
from foveate.cache.slots import derived
from foveate.hf.attention import dispatch
from foveate.stages.budget import Uniform
from foveate.stages.score.window import paid
from foveate.stages.select import TopK
from tests import zoo
from tests.conformance.compare import TOLERANCE
from tests.jitter import other_side
from tests.pairs import by_turns
from tests.ties import choices, same_kept

SPECS = (
    "david:budget=50%",
    "csp:budget=50%",
    "snapkv:budget=50%,window=12",
    "mixkv:budget=50%,window=12",
    "adakv:budget=50%,window=12",
)


OTHERS = ("mllama", "paligemma", "gemma3")  # images see tokens after them, or stand elsewhere


@pytest.fixture
def asked(monkeypatch):
    """The weights with which attention was added up, in prompts as short as those of tests."""
    monkeypatch.setattr(dispatch, "WORTH", 4)
    calls = []
    real = dispatch.attend_with_window_sums

    def noting(*args):
        calls.append(args[-1])
        return real(*args)

    monkeypatch.setattr(dispatch, "attend_with_window_sums", noting)
    return calls


@torch.no_grad()
def read(model, inputs, spec):
    with foveate.compress(model, spec), choices() as kept:
        return model(**inputs, use_cache=True).logits, kept


@by_turns(
    family=[f for f in zoo.FAMILIES if f not in OTHERS], spec=SPECS, lengths=[(60,), (31, 60)]
)
def test_what_is_kept_and_said_stays_the_same(family, spec, lengths, asked, monkeypatch):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    logits, kept = read(model, inputs, spec)
    assert asked
    monkeypatch.setattr(dispatch, "WORTH", 10**9)
    asked.clear()
    with other_side():
        expected, same = read(model, inputs, spec)
    assert not asked
    same_kept(kept, same)
    real = inputs["attention_mask"].bool() if "attention_mask" in inputs else slice(None)
    assert float((logits[real] - expected[real]).abs().max()) <= TOLERANCE


def test_other_prompts_are_left_to_the_stock_attention(asked):
    """Kept whole, in pieces, half precision, images that see what comes after them."""
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60,))
    read(model, inputs, "david:budget=100%")
    with foveate.compress(model, "david:budget=50%"):
        model.generate(**inputs, max_new_tokens=2, prefill_chunk_size=20, do_sample=False)
    prefix = zoo.prompt("paligemma", lengths=(60,))
    read(zoo.build("paligemma"), prefix, "david:budget=50%")
    assert not asked


@dataclass(frozen=True)
class Asks:
    """A score that reads so many sums of a window, with the weights that it declared or others."""

    times: int
    declared: bool = True

    def queries(self, tokens):
        return 12

    def window_weights(self, slots, groups):
        return _once_each(slots, groups)

    def __call__(self, layer):
        weights = self.window_weights(layer.slots, layer.groups)
        assert layer.window_sums.weights is weights
        if not self.declared:
            weights = WindowWeights(weights.counts[..., -7:])
        for _ in range(self.times):
            total = float(paid(layer, weights).sum())
            assert abs(total - float(weights.counts.sum()) * layer.k.shape[1]) < 1e-3
        return Scores(torch.arange(layer.k.shape[2]).expand(layer.k.shape[:3]).float())


@derived
def _once_each(slots, groups):
    return WindowWeights(torch.ones(slots.pos.shape[0], 1, groups, 12))


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("times", [0, 1, 2])
@torch.no_grad()
def test_the_attention_is_made_once_whether_the_sums_are_read_or_not(times, declared, asked):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(60, 50))
    policy = foveate.Policy(score=Asks(times, declared), budget=Uniform(amount=20), select=TopK())
    with other_side():
        expected = model(**inputs).logits
    with foveate.compress(model, policy) as session:
        ours = model(**inputs, use_cache=True).logits
    assert len(asked) == len(session.stats.layers)
    real = inputs["attention_mask"].bool()
    assert float((ours - expected)[real].abs().max()) <= TOLERANCE


@torch.no_grad()
def test_drafted_tokens_in_the_prompts_pass_see_what_is_kept(asked, monkeypatch):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(60,))
    longer = zoo.append("llama", inputs, torch.tensor([[40, 41, 42]]))

    def drafted(worth):
        monkeypatch.setattr(dispatch, "WORTH", worth)
        with foveate.compress(model, "snapkv:budget=50%,window=12") as session, choices() as kept:
            session.expect(tokens=60)
            return model(**longer, use_cache=True).logits, kept

    ours, kept = drafted(4)
    assert asked
    with other_side():
        theirs, same = drafted(10**9)
    if same_kept(kept, same).all():
        assert float((ours - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    "spec", ["snapkv:budget=50%,window=8", "csp:budget=50%", "mixkv:budget=50%,window=8"]
)
def test_a_window_may_reach_over_several_chunks(spec):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(31, 40), images=0)
    asked = {**inputs, "max_new_tokens": 1}
    with foveate.compress(model, spec):
        with choices() as kept:
            model.generate(**asked, prefill_chunk_size=40)
        with choices() as same, other_side():
            model.generate(**asked, prefill_chunk_size=6)  # the last chunk holds 4 tokens
    same_kept(kept, same)
