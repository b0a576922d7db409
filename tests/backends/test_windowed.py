"""A long window's attention is made once, for the output and the score; nothing else changes."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.backends.hf import windowed
from tests import zoo
from tests.conformance.compare import TOLERANCE

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


@pytest.mark.parametrize("lengths", [(60,), (31, 60)])
@pytest.mark.parametrize("family", [f for f in zoo.FAMILIES if f not in OTHERS])
@pytest.mark.parametrize("spec", SPECS)
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
