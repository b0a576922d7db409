"""What is given in the wrong place, or not called, is named, with what to write instead."""

from collections.abc import Iterator

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget, InvalidInput, InvalidParameter, InvalidSpec, UnknownMethod
from tests import zoo

from .users import unchecked


@pytest.fixture(autouse=True)
def as_users_run_it() -> Iterator[None]:
    """The errors are ours, and not those of the checks of types that tests may run with."""
    with unchecked():
        yield


LAYERS = [tuple(torch.randn(3, 1, 2, 60, 8).unbind()) for _ in range(2)]
SPEC = "snapkv:budget=50%,window=4"


@pytest.mark.parametrize("spec", [SPEC, "h2o:budget=30%", "mixkv(window=4)+prefixkv:budget=50%"])
def test_the_text_of_a_policy_goes_wherever_the_policy_does(spec):
    made = foveate.policy(spec)
    ours, theirs = foveate.compress_tensors(spec, LAYERS), foveate.compress_tensors(made, LAYERS)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.mask, other.mask)


PLACES = {
    "compress": foveate.compress,
    "calibrate": lambda model, policy: foveate.calibrate(model, policy, []),
    "compress_tensors": lambda model, policy: foveate.compress_tensors(policy, LAYERS),
    "policy": lambda model, policy: foveate.policy(policy),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_method_that_was_not_called_is_named(place):
    with pytest.raises(InvalidSpec, match=r"snapkv is a method.*foveate.snapkv\(budget='20%'\)"):
        PLACES[place](zoo.build("llama"), foveate.snapkv)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [None, 20, {"budget": 0.2}], ids=str)
def test_what_is_no_policy_is_refused_by_its_type(place, value):
    with pytest.raises(InvalidSpec, match=r"(None|this (int|dict)) is no policy. Give a spec"):
        PLACES[place](zoo.build("llama"), value)


@pytest.mark.parametrize("place", ["compress", "calibrate"])
@pytest.mark.parametrize("policy", [SPEC, foveate.policy(SPEC)], ids=["text", "policy"])
def test_the_wrong_way_round_the_order_is_said(place, policy):
    with pytest.raises(InvalidSpec, match=r"this LlamaForCausalLM is no .* Pass the model first"):
        PLACES[place](policy, zoo.build("llama"))
    with pytest.raises(InvalidSpec, match="this list is no policy"):
        foveate.compress_tensors(LAYERS, policy)
    with pytest.raises(InvalidInput, match="a lens needs a session"):
        foveate.lens(zoo.build("llama"), None, {})


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("SnapKV:budget=20%", "snapkv"),
        ("LOOK-M:budget=20%", "lookm"),
        ("MixKV+PrefixKV:budget=20%", "mixkv"),
        ("Snap-KV:budget=20%", "snapkv"),
        ("Streaming-LLM:budget=20%", "streaming_llm"),
    ],
)
def test_a_name_as_its_paper_writes_it_is_recognised(text, meant):
    with pytest.raises((UnknownMethod, InvalidSpec), match=f"Did you mean '{meant}'"):
        foveate.policy(text)


def test_a_number_of_tokens_that_is_meant_as_a_share_is_told_how_that_is_written():
    with pytest.raises(InvalidBudget, match="For 20 % of the prompt write '20%'"):
        foveate.policy("snapkv:budget=20").but(budget=20).check_strictly()
    with pytest.raises(InvalidBudget) as refused:
        foveate.policy("snapkv:budget=200,window=256").check_strictly()
    assert "%" not in str(refused.value)


@pytest.mark.parametrize("name", ["headkv", "sparsemm", "q_filters"])
def test_a_method_without_its_profile_says_what_makes_one(name):
    with pytest.raises(InvalidParameter, match=f"'foveate calibrate {name} --model MODEL' makes"):
        foveate.policy(f"{name}:budget=20%")
