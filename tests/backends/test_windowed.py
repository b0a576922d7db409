"""A long window's attention is written out once, and nothing else changes by it."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.backends.hf import windowed
from foveate.ops.softmax_n import share, softmax_n
from tests import zoo
from tests.conformance.compare import TOLERANCE

SPECS = ("david:budget=50%", "csp:budget=50%", "snapkv:budget=50%,window=12",
         "mixkv:budget=50%,window=12", "adakv:budget=50%,window=12")  # fmt: skip


OTHERS = ("mllama", "paligemma", "gemma3")  # images see tokens after them, or stand elsewhere


@pytest.fixture
def asked(monkeypatch):
    """Counts the layers whose window was written out, in prompts as short as those of tests."""
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


def test_a_rows_logsumexp_is_that_of_its_logits_also_where_its_own_slot_has_no_weight():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 5, 8, generator=g), torch.randn(2, 2, 9, 8, generator=g)
    k[1, 0, -2] = -60 * q[1, 1, 3]  # the slot of that query: its weight is zero
    visible = torch.ones(5, 9, dtype=torch.bool).tril(4).expand(2, 1, 5, 9).clone()
    visible[0, :, :, :2] = False
    logits = (q.view(2, 2, 2, 5, 8) @ k[:, :, None].transpose(3, 4)) * 0.3
    logits = logits.masked_fill(~visible[:, :, None], -torch.inf)
    found = windowed._totals(q, k, logits.softmax(-1), visible, 0.3)
    assert torch.allclose(found, logits.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert torch.allclose(logits.softmax(-1) * share(found, 1.0)[..., None],
                          softmax_n(logits, 1.0), atol=1e-6)  # fmt: skip
