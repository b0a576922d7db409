"""A long window's attention is made once, for the output and the score; nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import foveate
from foveate.backends.hf import windowed
from foveate.core.layer import Scores
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK
from tests import zoo
from tests.conformance.compare import TOLERANCE
from tests.pairs import by_turns

SPECS = ("david:budget=50%", "csp:budget=50%", "snapkv:budget=50%,window=12",
         "mixkv:budget=50%,window=12", "adakv:budget=50%,window=12")  # fmt: skip


OTHERS = ("mllama", "paligemma", "gemma3")  # images see tokens after them, or stand elsewhere


@pytest.fixture
def asked(monkeypatch):
    """Counts the layers whose last queries waited, in prompts as short as those of tests."""
    monkeypatch.setattr(windowed, "WORTH", 4)
    calls = []
    real = windowed.attention

    def counting(*args):
        out = real(*args)
        calls.append(out is not None)
        return out

    monkeypatch.setattr(windowed, "attention", counting)
    return calls


@torch.no_grad()
def read(model, inputs, spec):
    with foveate.compress(model, spec) as session:
        out = model(**inputs, use_cache=True)
        kept = [layer.pairs.columns.tolist() for layer in session.cache.layers
                if hasattr(layer, "pairs")]  # fmt: skip
    return out.logits, kept


@by_turns(
    family=[f for f in zoo.FAMILIES if f not in OTHERS], spec=SPECS, lengths=[(60,), (31, 60)]
)
def test_what_is_kept_and_said_stays_the_same(family, spec, lengths, asked, monkeypatch):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    logits, kept = read(model, inputs, spec)
    assert any(asked)
    monkeypatch.setattr(windowed, "WORTH", 10**9)
    asked.clear()
    expected, same = read(model, inputs, spec)
    assert not any(asked)
    assert kept == same
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
    assert asked
    assert not any(asked)


@dataclass(frozen=True)
class Asks:
    """A score that reads so many sums of a window, of fewer queries than it said."""

    times: int
    reads_window_sums: ClassVar[bool] = True

    def queries(self, tokens):
        return 12

    def __call__(self, layer):
        values = torch.arange(layer.k.shape[2]).expand(layer.k.shape[:3]).float()
        counts = torch.ones(len(layer.q), 1, layer.groups, 7)
        sums = [layer.window.sums(counts, 0.0).sum() for _ in range(self.times)]
        assert all(abs(float(s) - 7 * layer.q.shape[0] * layer.q.shape[1]) < 1e-3 for s in sums)
        return Scores(values)


@pytest.mark.parametrize("times", [0, 1, 2])
@torch.no_grad()
def test_the_attention_is_made_whether_the_sums_are_asked_for_or_not(times, asked):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(60, 50))
    policy = foveate.Policy(score=Asks(times), budget=Uniform(amount=20), select=TopK())
    expected = model(**inputs).logits
    with foveate.compress(model, policy) as session:
        ours = model(**inputs, use_cache=True).logits
        assert all(layer.window is None for layer in session.cache.layers)
        assert all(layer.seconds >= 0 for layer in session.stats.layers)
    assert asked == [True] * len(session.stats.layers)
    real = inputs["attention_mask"].bool()
    assert float((ours - expected)[real].abs().max()) <= TOLERANCE


@torch.no_grad()
def test_drafted_tokens_in_the_prompts_pass_see_what_is_kept(asked, monkeypatch):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(60,))
    longer = zoo.append("llama", inputs, torch.tensor([[40, 41, 42]]))
    logits = []
    for worth in (4, 10**9):
        monkeypatch.setattr(windowed, "WORTH", worth)
        with foveate.compress(model, "snapkv:budget=50%,window=12") as session:
            session.expect(tokens=60)
            logits.append(model(**longer, use_cache=True).logits)
    assert True in asked
    assert float((logits[0] - logits[1]).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    "spec", ["snapkv:budget=50%,window=8", "csp:budget=50%", "mixkv:budget=50%,window=8"]
)
def test_a_window_may_reach_over_several_chunks(spec):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(31, 40), images=0)
    kept = []
    with foveate.compress(model, spec) as session:
        for size in (40, 6):  # the last of the small ones holds 4 tokens
            model.generate(**inputs, max_new_tokens=1, prefill_chunk_size=size)
            kept.append([layer.pairs.columns.tolist() for layer in session.cache.layers])
    assert kept[0] == kept[1]
