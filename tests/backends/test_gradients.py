"""Gradients are the stock model's where a pass sees all that was read, and refused elsewhere."""

import pytest
import torch

import foveate
from foveate.errors import UnsupportedCache
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import TOLERANCE
from tests.jitter import other_side
from tests.ties import choices, same_kept

SPECS = (
    "full",
    "snapkv:budget=50%,window=4",
    "h2o:budget=50%",
    "kivi:bits=4,group=4",
    "lookm:budget=50%",
    "adakv:budget=50%,window=4",
)


def trained(family):
    model = zoo.fresh(family)
    model.train()
    return model.requires_grad_(True)


def checkpointed(model):
    """Under the name that the release has: the old one goes with transformers 6."""
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("how", ["checkpoints", "no cache", "both"])
@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_vl", "gemma3"])
def test_a_training_step_that_leaves_no_cache_has_the_stock_loss_and_gradients(family, how):
    """a training step, also with gradient checkpointing and `use_cache=False` | works | its loss
    and gradients are the stock ones; there is nothing to compress
    """
    model, inputs = trained(family), zoo.prompt(family)
    given = {**inputs, "labels": inputs["input_ids"]}
    if how != "checkpoints":
        given["use_cache"] = False
    if how != "no cache":
        checkpointed(model)
    stock = model(**given)
    expected = gradients(model, stock.loss)
    with foveate.compress(model, "snapkv:budget=50%,window=4"):
        loss = model(**given).loss
        found = gradients(model, loss)
    assert torch.equal(loss, stock.loss)
    assert same(found, expected)


def test_a_model_that_drops_its_cache_says_why_nothing_can_be_compressed():
    model, inputs = trained("llama"), zoo.prompt("llama")
    checkpointed(model)
    with (
        foveate.compress(model, "snapkv:budget=50%,window=4"),
        pytest.raises(UnsupportedCache, match=r"gradient checkpointing drops.*model.eval\(\)"),
        torch.no_grad(),
    ):
        model(**inputs)


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_training_step_in_a_block_has_the_stock_loss_and_gradients(family, spec):
    model, inputs = trained(family), zoo.prompt(family)
    inputs = dict(inputs, labels=inputs["input_ids"])
    stock = model(**inputs)
    wanted = gradients(model, stock.loss)
    with foveate.compress(model, spec) as session:
        ours = model(**inputs)
        assert torch.equal(ours.loss, stock.loss)
        assert same(gradients(model, ours.loss), wanted)
        assert all(layer.compressed == (spec != "full") for layer in session.stats.layers)
    assert wanted


def in_two_passes(model, ids, cache=None):
    first = model(input_ids=ids[:, :20], use_cache=True, **{CACHE: cache})
    second = model(input_ids=ids[:, 20:], use_cache=True, **{CACHE: first.past_key_values})
    return torch.cat([first.logits, second.logits], dim=1)


def loss_of(logits, ids):
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])


def test_several_passes_have_the_stock_gradients_where_everything_is_kept():
    model, ids = trained("llama"), zoo.prompt("llama")["input_ids"]
    wanted = gradients(model, loss_of(in_two_passes(model, ids), ids))
    with foveate.compress(model, "full"):
        found = gradients(model, loss_of(in_two_passes(model, ids), ids))
    assert same(found, wanted)


@pytest.mark.parametrize("spec", [*SPECS[1:], "csp:budget=50%,decode_n=1.5"])
def test_gradients_through_a_compressed_cache_are_refused_and_answers_are_not(spec):
    model, ids = trained("llama"), zoo.prompt("llama")["input_ids"]
    with foveate.compress(model, spec):
        with choices() as kept:
            logits = in_two_passes(model, ids)
        with torch.no_grad(), other_side(), choices() as again:
            found = in_two_passes(model, ids)
        if same_kept(again, kept).all():
            assert torch.allclose(found, logits, atol=TOLERANCE)
        with pytest.raises(UnsupportedCache, match="gradients do not flow through a compressed"):
            loss_of(logits, ids).backward()


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "kivi" not in spec])
def test_gradients_through_a_fixed_cache_are_refused(spec):
    model, inputs = trained("llama"), zoo.prompt("llama")
    with foveate.compress(model, spec) as session:
        session.prefill(**inputs)
        logits = model(input_ids=inputs["input_ids"][:, :1], **{CACHE: session.fixed(2)}).logits
        with pytest.raises(UnsupportedCache, match="gradients do not flow"):
            logits.sum().backward()


def test_a_cache_that_a_graph_holds_is_forked_and_saved(tmp_path):
    model, inputs = trained("llama"), zoo.prompt("llama")
    with foveate.compress(model, "full") as session:
        cache = model(**inputs).past_key_values
        fork = session.fork(cache)
        session.save(tmp_path / "cache.safetensors", cache=cache)
        loaded = session.load(tmp_path / "cache.safetensors")
        for layer, other, third in zip(cache.layers, fork.layers, loaded.layers, strict=True):
            assert torch.equal(layer.keys, other.keys)
            assert torch.equal(layer.keys, third.keys)
            assert layer.keys.requires_grad
            assert not other.keys.requires_grad
