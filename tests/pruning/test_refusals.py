"""What pruning cannot be exact in is refused by name, with the reason, and the model restored."""

import pytest
import torch

import foveate
from foveate.errors import (
    InvalidInput,
    InvalidParameter,
    InvalidSpec,
    MissingModality,
    UnknownMethod,
    UnsupportedModel,
    UnsupportedPolicy,
)
from foveate.vllm.plans.settings import check_policy
from tests import zoo

DOOR, INSIDE = "random.prune(keep=40%)+full", "fastv.prune(layer=1,keep=40%)+full"


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gemma3", "a window counts tokens"), ("mllama", "cross-attention")],
)
def test_models_in_which_dropping_is_not_exact(family, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        foveate.compress(zoo.build(family), DOOR)


@pytest.mark.parametrize("policy", [DOOR, INSIDE])
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"labels": True}, "labels was requested"),
        ({"output_hidden_states": True, "logits_to_keep": 1}, "output_hidden_states"),
        ({"output_attentions": True, "logits_to_keep": 1}, "output_attentions"),
        ({}, "logits of all tokens"),
        ({"logits_to_keep": 25}, "logits of the last 25 tokens"),
    ],
)
def test_what_dropped_tokens_do_not_have(policy, asked, named):
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    if "labels" in asked:
        asked = {"labels": inputs["input_ids"]}
    stock = model(**inputs).logits
    with foveate.compress(model, policy) as session:
        with pytest.raises(InvalidInput, match=named):
            model(**inputs, **asked)
        session.prefill(**inputs)  # and goes on
    assert torch.equal(model(**inputs).logits, stock)


def test_router_logits_of_dropped_tokens():
    model, inputs = zoo.build("qwen3_vl_moe"), zoo.prompt("qwen3_vl_moe")
    with foveate.compress(model, DOOR), pytest.raises(InvalidInput, match="router"):
        model(**inputs, output_router_logits=True, logits_to_keep=1)


def test_text_alone_and_logits_that_are_all_computed_are_given():
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    text = zoo.prompt("llava", images=0)
    stock = model(**text).logits
    with foveate.compress(model, DOOR):
        assert torch.equal(model(**text).logits, stock)
        assert model(**inputs, logits_to_keep=4).logits.shape[1] == 4


def test_nothing_that_tells_which_tokens_are_visual():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", images=0)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    with foveate.compress(model, DOOR), pytest.raises(MissingModality, match="vision="):
        model(inputs_embeds=embeds, logits_to_keep=1)


def test_a_layer_that_the_model_does_not_have():
    with pytest.raises(InvalidParameter, match="layers 0 to 2"):
        foveate.compress(zoo.build("llava"), "fastv.prune(layer=3,keep=40%)+full")


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("fastv.prune(keep=50%)", InvalidSpec, r"\+full"),
        ("snapkv+fastv.prune(keep=50%):budget=20%", InvalidSpec, "must be the first term"),
        ("snapkv.prune(keep=50%)+full", UnknownMethod, "prunes. Known"),
        ("fastv.prune(kep=50%)+full", InvalidSpec, "keep"),
        ("random.prune(keep=20)+full", InvalidParameter, "share"),
        ("random.prune(keep=0%)+full", InvalidParameter, "above 0"),
        ("fastv.prune(layer=0)+full", InvalidParameter, "layer=0"),
    ],
)
def test_specs_that_say_nothing_that_can_be_done(spec, error, said):
    with pytest.raises(error, match=said):
        foveate.policy(spec)


def test_engines_that_have_no_such_stage():
    with pytest.raises(UnsupportedPolicy, match="video-pruning-rate"):
        check_policy(foveate.policy("random.prune(keep=40%)+snapkv:budget=20%"))
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(UnsupportedPolicy, match="before they are computed"):
        foveate.compress_tensors("random.prune(keep=40%)+snapkv:budget=20%", [(q, q, q)])


def test_specs_read_back_and_budgets_are_of_the_prompt_that_was_given():
    for spec in (
        "fastv.prune(layer=2,keep=50%)+recommended:budget=10%",
        "divprune.prune(keep=40%)+mixkv+prefixkv:budget=20%",
        "snapkv:budget=20%,window=4,prune=spatial_prune(keep=50%)",
    ):
        policy = foveate.policy(spec)
        assert foveate.policy(policy.spec) == policy
        assert policy.but(prune=None).prune is None
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(31, 40))
    with foveate.compress(model, "random.prune(keep=30%)+snapkv:budget=50%,window=4") as session:
        session.prefill(**inputs)
        assert session.stats.asked.tolist() == [15, 20]
        computed = session.stats.computed
    assert float((computed - 2 / 9).abs().max()) < 1e-12
