"""Every family: keep everything is the stock cache, keep less is the masked full cache."""

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import UnsupportedPolicy
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.pairs import by_turns, failures

from .compare import GREEDY, check_generate
from .oracle import event_of, oracle
from .policies import EVERY, is_refused

BATCHES = {"alone": (40,), "left-padded": (23, 31, 40)}


@by_turns(
    rounds=2,
    family=zoo.FAMILIES,
    policy=["full", "snapkv:budget=100%,window=4", "h2o:budget=40"],
    lengths=BATCHES,
)
def test_keeping_everything_is_bit_identical_to_the_stock_cache(family, lengths, policy):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, policy):
        ours = model.generate(**inputs, **GREEDY)
    assert torch.equal(ours.sequences, stock.sequences)
    for step, (a, b) in enumerate(zip(ours.logits, stock.logits, strict=True)):
        assert torch.equal(a, b), f"step {step}"


@by_turns(rounds=2, policy=EVERY, family=zoo.FAMILIES, lengths=BATCHES)
def test_keeping_less_equals_the_full_cache_with_the_evicted_masked(family, lengths, policy):
    model = zoo.build(family)
    if is_refused(family, policy):
        with pytest.raises(UnsupportedPolicy, match="all heads of a layer share"):
            foveate.compress(model, policy)
    else:
        check_generate(model, policy, zoo.prompt(family, lengths=lengths))


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_policy_agrees_with_the_masked_full_cache_in_every_family(family):
    """Every pair of a family and a policy; other tests combine some of them with every mode."""
    inputs = zoo.prompt(family, lengths=BATCHES["left-padded"])

    def check(name):
        check_generate(zoo.build(family), EVERY[name], inputs)

    names = [name for name, policy in EVERY.items() if not is_refused(family, policy)]
    assert failures(check, ((name,) for name in names)) == {}


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_eager_attention_is_followed_too(family):
    model = zoo.fresh(family)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = "eager"
    inputs = zoo.prompt(family, lengths=(23, 31, 40))
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, "full"):
        ours = model.generate(**inputs, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))
    check_generate(model, EVERY["ragged"], inputs)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("policy", [EVERY["dense"], EVERY["ragged"]], ids=["dense", "ragged"])
def test_half_precision_agrees_to_its_own_rounding(family, policy, dtype):
    model, inputs = zoo.fresh(family).to(dtype), zoo.prompt(family, lengths=(31, 40))
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    later = zoo.extend(family, inputs, new_text=1).cached
    how = {**GREEDY, "max_new_tokens": 1}
    with foveate.compress(model, policy) as session:
        cache = session.prefill(**inputs)
        event = event_of(cache)
        ours = model.generate(**later, **{CACHE: cache}, **how).logits[0]
    stock = DynamicCache(config=model.config)
    with oracle(model, event):
        model(**inputs, **{CACHE: stock})
        theirs = model.generate(**later, **{CACHE: stock}, **how).logits[0]
    with oracle(model):
        full = DynamicCache(config=model.config)
        model(**inputs, **{CACHE: full})
        uncompressed = model.generate(**later, **{CACHE: full}, **how).logits[0]
    noise, effect = ((x - theirs).abs().mean() for x in (ours, uncompressed))
    assert noise < 0.2 * effect
