"""Every family: keep everything is the stock cache, keep less is the masked full cache."""

import pytest
import torch

import foveate
from tests import zoo

from .compare import GREEDY, check_generate
from .policies import EVERY

BATCHES = {"alone": (40,), "left-padded": (23, 31, 40)}


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("policy", ["full", "snapkv:budget=100%,window=4", "h2o:budget=40"])
def test_keeping_everything_is_bit_identical_to_the_stock_cache(family, lengths, policy):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, policy):
        ours = model.generate(**inputs, **GREEDY)
    assert torch.equal(ours.sequences, stock.sequences)
    for step, (a, b) in enumerate(zip(ours.logits, stock.logits, strict=True)):
        assert torch.equal(a, b), f"step {step}"


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("policy", EVERY.values(), ids=EVERY.keys())
def test_keeping_less_equals_the_full_cache_with_the_evicted_masked(family, lengths, policy):
    check_generate(zoo.build(family), policy, zoo.prompt(family, lengths=lengths))


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
