"""A policy is data: immutable, made of one stage of each kind, and copied with changes."""

import dataclasses

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget, InvalidParameter, UnknownMethod
from foveate.policies.protocols import AfterPrefill, FullPrecision, NoMerge
from foveate.stages.budget import Uniform
from foveate.stages.score import ColumnSums, KeyNorm, Recency, WindowAttention
from foveate.stages.select import TopK
from foveate.stages.when import OverBudget

from .labels import Label
from .users import unchecked

STAGES = {
    "score": KeyNorm(),
    "budget": Uniform(amount=0.5),
    "select": TopK(),
    "merge": NoMerge(),
    "when": AfterPrefill(),
    "store": FullPrecision(),
}


def test_a_policy_cannot_be_changed():
    policy = foveate.snapkv(budget=0.2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.score = KeyNorm()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.budget.amount = 0.5


def test_stages_and_parameters_are_given_by_keyword():
    with pytest.raises(TypeError):
        foveate.Policy(KeyNorm(), Uniform(amount=0.5), TopK())
    with pytest.raises(InvalidParameter, match=r"by name: snapkv\(budget=0.2\)"):
        foveate.snapkv(0.2)
    with pytest.raises(InvalidParameter, match="TopK takes its parameters by name, not 8"):
        TopK(8)


def test_equal_policies_are_equal_and_hash_alike_however_they_were_made():
    by_hand = foveate.Policy(
        score=WindowAttention(window=8), budget=Uniform(amount=0.2), select=TopK(recent=8)
    )
    assert by_hand == foveate.snapkv(budget="20%", window=8)
    assert hash(by_hand) == hash(foveate.snapkv(budget="20%", window=8))
    assert by_hand != foveate.snapkv(budget="20%", window=9)


def test_the_defaults_merge_nothing_and_compress_once():
    policy = foveate.Policy(score=KeyNorm(), budget=Uniform(amount=0.5), select=TopK())
    assert (policy.merge, policy.when, policy.scope) == (NoMerge(), AfterPrefill(), "layer")


def test_but_changes_what_it_names_and_keeps_the_rest():
    policy = foveate.snapkv(budget=0.2, window=8, kernel=3, pool="max", group="max")
    changed = policy.but(window=16)
    assert changed == foveate.snapkv(budget=0.2, window=16, kernel=3, pool="max", group="max")
    assert policy == foveate.snapkv(budget=0.2, window=8, kernel=3, pool="max", group="max")
    assert policy.but(budget="30%").but(kernel=7) == policy.but(kernel=7, budget=0.3)
    assert policy.but() == policy


def test_but_keeps_a_stage_that_was_set_when_a_parameter_changes_later():
    policy = foveate.snapkv(budget=0.2, window=8).but(select=TopK(sinks=2), when=OverBudget())
    changed = policy.but(window=4, budget=30)
    assert changed.score == WindowAttention(window=4)
    assert (changed.select, changed.when) == (TopK(sinks=2), OverBudget())
    assert changed.budget == Uniform(amount=30)
    assert changed.but(select=TopK(recent=4)).select == TopK(recent=4)


def test_but_can_set_every_stage():
    stages = {
        "score": ColumnSums(),
        "budget": Uniform(amount=9),
        "select": TopK(recent=2),
        "merge": Label(text="x"),
        "when": OverBudget(every=2),
    }
    changed = foveate.knorm(budget=0.5).but(**stages)
    assert {slot: getattr(changed, slot) for slot in stages} == stages
    assert changed.name == "knorm"
    assert changed.origin.arguments["budget"] == changed.budget.amount


def test_a_stage_may_be_set_by_its_bare_name():
    changed = foveate.knorm(budget=9).but(score="recency", when="over_budget")
    assert (changed.score, changed.when) == (Recency(), OverBudget())
    with pytest.raises(UnknownMethod, match=r"Did you mean 'recency'\?"):
        foveate.knorm(budget=9).but(score="recenty")


@pytest.mark.parametrize("made", [foveate.knorm(budget=0.5), foveate.Policy(**STAGES)])
def test_but_changes_the_amount_of_a_budget_stage_of_any_origin(made):
    assert made.but(budget=7).budget == Uniform(amount=7)
    assert made.but(budget=Uniform(amount=7)).but(budget="50%") == made


@pytest.mark.parametrize(
    ("policy", "name", "says"),
    [
        (foveate.snapkv(budget=0.2), "windw", "Did you mean 'window'?"),
        (foveate.knorm(budget=0.2), "window", "knorm has no parameter 'window'"),
        (foveate.Policy(**STAGES), "window", "a policy has no stage 'window'"),
        (foveate.Policy(**STAGES), "scor", "Did you mean 'score'?"),
    ],
)
def test_but_refuses_what_is_neither_a_stage_nor_a_parameter(policy, name, says):
    with pytest.raises(InvalidParameter) as refused:
        policy.but(**{name: 4})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("make", "protected"),
    [
        (lambda: foveate.snapkv(budget=31), 32),
        (lambda: foveate.snapkv(budget=7, window=8), 8),
        (lambda: foveate.snapkv(budget=0.5).but(budget=16), 32),
        (lambda: foveate.snapkv(budget=16, window=8).but(window=17), 17),
        (lambda: foveate.streaming_llm(budget=3), 4),
        (lambda: foveate.knorm(budget=5).but(select=TopK(recent=4, sinks=2)), 6),
        (lambda: foveate.policy("h2o:budget=9,recent=10"), 10),
    ],
)
def test_a_budget_below_what_is_always_kept_is_refused_only_strictly(make, protected):
    policy = make()
    assert policy.tokens(torch.tensor([100]), 0).tolist() == [protected]
    with pytest.raises(InvalidBudget) as refused:
        policy.check_strictly()
    assert f"the {protected} tokens that are always kept" in str(refused.value)
    assert f"at least {protected}" in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "kind", "says"),
    [
        ("h2o:budget=64", InvalidBudget, "does not grow with the answer"),
        ("prefixkv:budget=20%", InvalidParameter, "Use when=fixed_slot"),
        ("pyramidkv:budget=20%", InvalidParameter, "gives layers or heads different ones"),
        ("adakv:budget=20%", InvalidParameter, "gives layers or heads different ones"),
    ],
)
def test_a_budget_that_grows_is_one_share_for_all_heads(spec, kind, says):
    with pytest.raises(kind, match=says):
        foveate.policy(f"{spec},when=over_budget(growing=true)")


def test_a_budget_of_just_what_is_always_kept_is_allowed():
    assert foveate.snapkv(budget=8, window=8).select.protects == 8
    assert foveate.streaming_llm(budget=4).select.protects == 4


OTHERS = [(slot, other) for slot in STAGES for other in STAGES if slot != other]


@pytest.mark.parametrize(("slot", "other"), OTHERS, ids=["-".join(pair) for pair in OTHERS])
def test_a_stage_of_another_kind_is_refused(slot, other):
    with pytest.raises(InvalidParameter, match=f"not a {slot} stage"), unchecked():
        foveate.Policy(**{**STAGES, slot: STAGES[other]})


@pytest.mark.parametrize("slot", STAGES)
@pytest.mark.parametrize("wrong", [None, 3, Recency, TopK], ids=repr)
def test_what_is_no_stage_is_refused(slot, wrong):
    """A class is no stage either: it was forgotten to make one of it."""
    with pytest.raises(InvalidParameter, match=f"not a {slot} stage"), unchecked():
        foveate.Policy(**{**STAGES, slot: wrong})
