"""The prompt's attention adds up its column sums on the way, where that changes nothing else."""

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.hf.attention import dispatch as attention
from foveate.ops.column_sums import column_sums
from tests import zoo

FAMILIES = ["llava", "qwen2_5_vl", "llama"]


@pytest.fixture
def calls(monkeypatch):
    """What the attention with sums was called with, and what it gave."""
    made = []

    def spy(q, k, v, scale, pads):
        out, sums = real(q, k, v, scale, pads)
        made.append((q, k, scale, pads, sums))
        return out, sums

    real = attention.attention_with_sums
    monkeypatch.setattr(attention, "attention_with_sums", spy)
    return made


def prefilled(model, inputs, policy, **how):
    with foveate.compress(model, policy, **how) as session:
        session.prefill(**inputs)
        return session


@pytest.mark.parametrize("method", ["h2o", "prefixkv", "lookm"])
@pytest.mark.parametrize("lengths", [(40,), (23, 31, 40)], ids=["alone", "left-padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_that_need_them_get_the_sums_of_the_attention_itself(family, lengths, method, calls):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    session = prefilled(model, inputs, foveate.policy(method, budget="60%"))
    assert len(calls) == len(session.cache.layers)
    for q, k, scale, pads, sums in calls:
        assert pads == [max(lengths) - length for length in lengths]
        assert_close(sums, column_sums(q, k, scale, None, pads))


@pytest.mark.parametrize("spec", ["snapkv:budget=20,window=8", "h2o:budget=100%", "h2o:budget=40"])
def test_the_stock_attention_stays_where_nothing_needs_them_or_everything_is_kept(spec, calls):
    inputs = zoo.prompt("llama", lengths=(40, 31))
    prefilled(zoo.build("llama"), inputs, foveate.policy(spec))
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_in_half_precision_they_come_with_the_attention_which_differs_by_rounding(calls, dtype):
    half, inputs = zoo.fresh("llama").to(dtype), zoo.prompt("llama", lengths=(40,))
    stock = half(**inputs).logits
    with foveate.compress(half, foveate.h2o(budget=20)) as session:
        ours = half(**inputs).logits
    assert len(calls) == len(session.cache.layers)
    assert ours.dtype == dtype
    assert (ours - stock).abs().max() < 0.05 * stock.abs().max()


def test_the_stock_attention_stays_under_a_mask_of_its_own(calls):
    prefilled(zoo.build("paligemma"), zoo.prompt("paligemma"), foveate.h2o(budget=20))
    assert calls == []


def test_the_stock_attention_stays_where_gradients_are_wanted(calls):
    model = zoo.fresh("llama").requires_grad_(True)
    with torch.enable_grad(), foveate.compress(model, foveate.h2o(budget=20)):
        out = model(**zoo.prompt("llama", lengths=(40,)))
    out.logits.sum().backward()
    assert calls == []


def test_decoding_steps_make_no_pass_for_the_sums(calls):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    with foveate.compress(model, foveate.policy("h2o:budget=20,when=over_budget")) as session:
        model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        layers = len(session.cache.layers)
    assert len(calls) == layers


def test_a_prompt_in_chunks_adds_up_chunk_by_chunk(calls):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40, 31))
    with foveate.compress(model, foveate.h2o(budget=20)) as session:
        model.generate(**inputs, max_new_tokens=1, prefill_chunk_size=16)
        layers = len(session.cache.layers)
    assert len(calls) == 3 * layers
