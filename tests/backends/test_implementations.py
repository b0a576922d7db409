"""Attention implementations beside sdpa and eager: the prompt is read, and dense pairs are decoded,
by the one that was chosen.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import foveate
from foveate.hf.model.internals import AttentionInterface
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, check_generate, difference
from tests.jitter import other_side
from tests.ties import choices, same_kept

SPECS = ("snapkv:budget=30%,window=4", "h2o:budget=30%", "adakv:budget=30%,window=4")
CALLS = []


def varlen(module, query, key, value, attention_mask, scaling=None, **_):
    """As flash attention: rows without padding, no other mask, the last query at the last key."""
    CALLS.append((query.shape[2], attention_mask))
    assert attention_mask is None or attention_mask.ndim == 2
    b, hq, m, _ = query.shape
    out = torch.zeros(b, m, hq, value.shape[-1], dtype=query.dtype)
    for row in range(b):
        real = torch.ones(key.shape[2], dtype=torch.bool)
        if attention_mask is not None:
            real = attention_mask[row].bool()
        mine = real[-m:]
        q, k, v = query[row][:, mine], key[row][:, real], value[row][:, real]
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        done = scaled_dot_product_attention(q, k, v, seen, scale=scaling, enable_gqa=True)
        out[row, mine] = done.transpose(0, 1)
    return out, None


@pytest.fixture
def flash(monkeypatch):
    """A stand-in for flash attention, which no CPU has."""
    CALLS.clear()
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", varlen)
    return "flash_attention_2"


def chosen(name, family, dtype=torch.float32):
    model = zoo.fresh(family).to(dtype)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = name
    return model


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_kept_under_flash_attention_is_the_stock_answer(family, dtype, flash):
    model, inputs = chosen(flash, family, dtype), zoo.prompt(family, lengths=(31, 40))
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, "full"):
        ours = model.generate(**inputs, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lengths", [(40,), (23, 40)], ids=["alone", "left-padded"])
def test_less_kept_under_flash_attention_is_the_masked_full_cache(spec, lengths, flash):
    model = chosen(flash, "llava")
    inputs = zoo.prompt("llava", lengths=lengths)
    check_generate(model, foveate.policy(spec), inputs)
    passes = [m for m, _ in CALLS]
    assert passes[: len(model.model.language_model.layers)].count(40) > 1, "the prompt's pass"
    dense = not spec.startswith("adakv") and len(lengths) == 1
    assert (1 in passes) == dense, "steps over dense pairs, and no others"


@pytest.mark.parametrize("spec", SPECS)
def test_a_second_turn_under_flash_attention_is_that_under_sdpa(spec, flash):
    inputs = zoo.prompt("llama", lengths=(23, 40))
    more = zoo.extend("llama", inputs, new_text=7).cached

    def answered(name):
        model = chosen(name, "llama")
        with foveate.compress(model, spec) as session, choices() as kept:
            cache = session.prefill(**inputs)
            return model.generate(**more, past_key_values=cache, **GREEDY), kept

    theirs, kept = answered("sdpa")
    with other_side():
        ours, same = answered(flash)
    assert difference(ours, theirs, same_kept(same, kept)) <= TOLERANCE


@pytest.mark.filterwarnings("ignore:flex_attention called", "ignore::DeprecationWarning")
@pytest.mark.parametrize("spec", ["full", *SPECS])
@torch.compiler.set_stance("force_eager")
def test_flex_attention_is_followed(spec):
    """Not compiled: that takes a minute on a CPU, and PyTorch 2.13 compiles no padded masks."""
    model, inputs = chosen("flex_attention", "llama"), zoo.prompt("llama", lengths=(23, 40))
    if spec == "full":
        stock = model.generate(**inputs, **GREEDY)
        with foveate.compress(model, "full"):
            ours = model.generate(**inputs, **GREEDY)
        assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))
    else:
        with foveate.compress(model, spec), choices() as kept:
            ours = model.generate(**inputs, **GREEDY)
        sdpa = chosen("sdpa", "llama")
        with foveate.compress(sdpa, spec), choices() as same, other_side():
            theirs = sdpa.generate(**inputs, **GREEDY)
        assert difference(ours, theirs, same_kept(same, kept)) <= TOLERANCE


@pytest.mark.parametrize("name", ["kernels-community/flash-attn3", "flash_attention_3"])
def test_kernels_that_stand_in_for_flash_attention_are_accepted(name):
    foveate.compress(chosen(name, "llama"), "full")
