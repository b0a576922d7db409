"""Policies print as text that parses back, and text that does not parse says why."""

import pickle

import pytest
import torch
from hypothesis import example, given, reject
from hypothesis import strategies as st

import foveate
from foveate.errors import InvalidBudget, InvalidParameter, InvalidSpec, UnknownMethod
from foveate.methods.csp import SoftmaxN
from foveate.methods.kivi import Kivi
from foveate.methods.lookm import TextPrior
from foveate.methods.mixkv import MixDiversity
from foveate.policies.gathering import GATHERINGS
from foveate.policies.protocols import AfterPrefill, FullPrecision, NoMerge, Softmax
from foveate.profiles.profile import Profile
from foveate.stages.budget import Uniform
from foveate.stages.score import (
    ColumnSums,
    HeadMean,
    KeyNorm,
    RandomScore,
    Recency,
    ValueNorm,
    WindowAttention,
)
from foveate.stages.select import TopK
from foveate.stages.when import FixedSlot, OverBudget
from tests.profiles import saved_tensors, tensors_of

from .labels import Label
from .lean import lean, leaner
from .parameters import NEEDS_PROFILE, of_method
from .prompts import GivenCounts
from .users import unchecked

# every budget is above everything that these parameters protect
amounts = st.one_of(
    st.integers(100, 10**6),
    st.floats(0.001, 1.0),
    st.integers(1, 100).map(lambda p: f"{p}%"),
)
in_bytes = st.integers(1, 100).map(lambda p: f"{p}MB")  # of pairs in full precision alone
windows, odd = st.integers(1, 40), st.integers(0, 5).map(lambda i: 2 * i + 1)
pools, reductions = st.sampled_from(["avg", "max", "none"]), st.sampled_from(["mean", "max"])
recents = st.integers(1, 40) | st.floats(0, 1, exclude_max=True)
seeds, shares = st.integers(0, 10**6), st.floats(0, 1, exclude_max=True)
PARAMETERS = {
    name: of_method(method) for name, method in foveate.METHODS.items() if name not in NEEDS_PROFILE
}
WHOLE = {"full", "kivi", "turboquant"}  # keep everything: there is no budget
nothing_or = st.none().__or__
labels = st.recursive(
    st.builds(NoMerge) | st.builds(Label, text=st.text(max_size=8)),
    lambda inner: st.builds(
        Label,
        text=st.text(alphabet="ab,=()'\\ \n%", max_size=8) | st.sampled_from(["true", "1", "1.0"]),
        number=st.floats(-1e30, 1e30),
        on=st.booleans(),
        inner=inner,
    ),
    max_leaves=3,
)
STAGES = {
    "score": st.one_of(
        st.builds(Recency),
        st.builds(KeyNorm),
        st.builds(ValueNorm),
        st.builds(RandomScore, seed=seeds),
        st.builds(ColumnSums, group=reductions),
        st.builds(WindowAttention, window=recents, kernel=odd, pool=pools, group=reductions),
        st.builds(TextPrior, of=st.builds(HeadMean, of=st.builds(ColumnSums, group=reductions))),
        st.builds(MixDiversity, of=st.builds(WindowAttention, window=windows), window=recents),
    ),
    "budget": st.builds(Uniform, amount=amounts),
    "select": st.builds(TopK, recent=st.integers(0, 50) | shares, sinks=st.integers(0, 50)),
    "merge": labels,
    "when": st.builds(AfterPrefill)
    | st.builds(OverBudget, every=st.integers(1, 99))
    | st.builds(FixedSlot, distance=st.integers(1, 99), every=st.integers(1, 9)),
    "attend": st.builds(Softmax) | st.builds(SoftmaxN, n=st.floats(0, 9)),
    "store": st.builds(FullPrecision) | st.builds(Kivi, bits=st.sampled_from([8, 4, 2])),
}


@st.composite
def calls(draw, name, budgets=amounts):
    """Arguments of a method, each of them given or not; none that its function refuses together."""
    optional = draw(st.fixed_dictionaries({}, optional=PARAMETERS[name]))
    arguments = optional if name in WHOLE else {"budget": draw(budgets), **optional}
    try:
        foveate.METHODS[name](**arguments)
    except InvalidParameter:
        reject()
    return arguments


def assert_reads_back(policy):
    again = foveate.policy(policy.spec)
    assert again == policy
    assert again.spec == policy.spec == str(policy)
    assert again.name == policy.name


@pytest.mark.parametrize("name", sorted(NEEDS_PROFILE - {*GATHERINGS}))
def test_a_spec_with_a_profile_reads_back(name, tmp_path):
    path = Profile(
        method=name, model="", layers=2, samples=1, budget="", by_layer=[[1.0, 2.0], [3.0, 4.0]]
    ).save(tmp_path / "heads, 1.json")
    others = {"as_released": True, "window": 16, "sinks": 3, "recent": 7}
    takes = foveate.METHODS[name].parameters
    others = {key: value for key, value in others.items() if key in takes}
    made = foveate.METHODS[name](budget="10%", profile=str(path), **others)
    assert_reads_back(made)


def test_a_spec_with_a_profile_of_tensors_reads_back(tmp_path):
    path = saved_tensors(tmp_path, "q_filters", [{"filters": torch.ones(2, 4)}])
    made = foveate.q_filters(budget="10%", profile=str(path), recent=3)
    assert_reads_back(made)
    path = saved_tensors(tmp_path, "triattention", [tensors_of("triattention", 2, 4)])
    assert_reads_back(foveate.triattention(budget="10%", profile=str(path), recent=3))
    path = saved_tensors(tmp_path, "kvzap", [tensors_of("kvzap", 2, 4)])
    for keeps in ({"threshold": -3.5}, {"budget": "10%"}, {}):
        assert_reads_back(foveate.kvzap(profile=str(path), recent=3, **keeps))


@pytest.mark.parametrize("name", PARAMETERS)
@leaner
@given(data=st.data())
def test_every_call_of_a_method_prints_as_a_spec_that_makes_an_equal_policy(name, data):
    arguments = data.draw(calls(name, amounts | in_bytes))
    policy = foveate.METHODS[name](**arguments)
    assert_reads_back(policy)
    assert policy.spec.partition(":")[0] == name


@lean
@given(data=st.data())
def test_overridden_stages_print_and_read_back(data):
    name = data.draw(st.sampled_from(sorted(PARAMETERS)))
    stages = data.draw(st.fixed_dictionaries({}, optional=STAGES))
    policy = foveate.METHODS[name](**data.draw(calls(name))).but(**stages)
    assert all(getattr(policy, slot) == stage for slot, stage in stages.items())
    assert_reads_back(policy)


@lean
@given(stages=st.fixed_dictionaries(STAGES))
def test_policies_made_by_hand_print_and_read_back(stages):
    policy = foveate.Policy(**stages)
    assert policy.name == "policy"
    assert_reads_back(policy)


@lean
@given(text=st.text())
@example(text="")
@example(text="it's, (so) = far\\'")
@example(text=" padded ")
@example(text="top_k(recent=1)")
@example(text="\\")
@example(text="none")
def test_any_text_survives_in_a_stage_within_a_stage(text):
    merge = Label(text=text, inner=Label(text=f"({text}", inner=Label(text=f"{text}',")))
    assert_reads_back(foveate.knorm(budget=0.5).but(merge=merge))


@pytest.mark.parametrize(
    ("policy", "spec"),
    [
        (foveate.full(), "full"),
        (foveate.snapkv(budget=0.2), "snapkv:budget=20%"),
        (foveate.snapkv(budget="64MB", window=16), "snapkv:budget=64MB,window=16"),
        (foveate.snapkv(window=16, budget=300, kernel=5), "snapkv:budget=300,window=16"),
        (foveate.h2o(budget=40).but(when=OverBudget()), "h2o:budget=40,when=over_budget()"),
        (
            foveate.knorm(budget=0.5).but(select=TopK(recent=8, sinks=4)),
            "knorm:budget=50%,select=top_k(recent=8,sinks=4)",
        ),
    ],
)
def test_a_spec_names_what_differs_from_the_defaults(policy, spec):
    assert policy.spec == spec


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        (" snapkv : budget = 20% , window = 16 ", foveate.snapkv(budget=0.2, window=16)),
        ("snapkv:window=16,budget=0.2", foveate.snapkv(budget=0.2, window=16)),
        ("snapkv:budget='20%'", foveate.snapkv(budget=0.2)),
        ("snapkv:budget=40,pool=none", foveate.snapkv(budget=40, pool="none")),
        ("h2o:budget=40,when=over_budget", foveate.h2o(budget=40).but(when=OverBudget())),
        ("knorm:budget=uniform(amount=20%)", foveate.knorm(budget=0.2)),
        (
            "policy:score=recency,budget=uniform(amount=4),select=top_k",
            foveate.Policy(score=Recency(), budget=Uniform(amount=4), select=TopK()),
        ),
    ],
)
def test_a_spec_may_be_written_in_other_ways(spec, policy):
    assert foveate.policy(spec) == policy


def test_keyword_arguments_override_a_spec_and_a_policy():
    assert foveate.policy("snapkv:budget=20%", budget=0.1) == foveate.snapkv(budget=0.1)
    assert foveate.policy("snapkv", budget=0.1, window=8) == foveate.snapkv(budget=0.1, window=8)
    expected = foveate.knorm(budget=9).but(when=OverBudget(every=3))
    assert foveate.policy("knorm:budget=9", when=OverBudget(every=3)) == expected
    assert foveate.policy(foveate.knorm(budget=9), when=OverBudget(every=3)) == expected
    policy = foveate.knorm(budget=9)
    assert foveate.policy(policy) is policy


@pytest.mark.parametrize("start", ["knorm:", "policy:score=key_norm,select=top_k,"])
def test_another_amount_leaves_the_budget_stage_of_a_spec_as_it_is(start):
    spec = f"{start}budget=test_given_counts(amount=4,scope=model)"
    changed = foveate.policy(spec, budget=9)
    assert changed == foveate.policy(spec.replace("4", "9"))
    assert changed == foveate.policy(spec).but(budget=9)
    assert changed.budget == GivenCounts(amount=9, scope="model")


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("", InvalidSpec, "names no method"),
        (":budget=20%", InvalidSpec, "names no method"),
        ("snapkv:budget", InvalidSpec, "'budget' is not of the form key=value"),
        ("snapkv:budget=", InvalidSpec, "'budget=' is not of the form"),
        ("snapkv:=20%", InvalidSpec, "'=20%' is not of the form"),
        ("snapkv:2budget=20%", InvalidSpec, "'2budget=20%' is not of the form"),
        ("snapkv:budget=20%,budget=30%", InvalidSpec, "'budget' is given twice"),
        ("snapkv:budget=20%,select=top_k(recent=8", InvalidSpec, "parenthesis"),
        ("snapkv:budget=20%,select=top_k(recent=8))", InvalidSpec, "parenthesis"),
        ("snapkv:budget='20%", InvalidSpec, "unclosed quote"),
        ("snapkv:budget=20%,select=top_k(recnt=8)", InvalidSpec, "Did you mean 'recent'?"),
        ("snapkv:budget=20%,select=top_k(8)", InvalidSpec, "'8' is not of the form"),
        ("snapkv:budget=uniform()", InvalidSpec, "uniform needs 'amount'"),
        ("policy:score=recency,select=top_k", InvalidSpec, "has no budget"),
        ("policy:scor=recency", InvalidSpec, "Did you mean 'score'?"),
        ("snapk:budget=20%", UnknownMethod, "Did you mean 'snapkv'?"),
        ("zzz:budget=20%", UnknownMethod, "Known: adakv, "),
        ("snapkv:budget=20%,select=topk()", UnknownMethod, "Did you mean 'top_k'?"),
        ("snapkv:budget=20%,when=over_bugdet", UnknownMethod, "Did you mean 'over_budget'?"),
        ("snapkv:budget=20%,windw=4", InvalidParameter, "Did you mean 'window'?"),
        ("snapkv", InvalidParameter, "needs a budget: 'snapkv:budget=20%'"),
        ("snapkv:budget=20%,when=5", InvalidParameter, "when"),
        ("snapkv:budget=20%,window=many", InvalidParameter, "window='many'"),
        ("snapkv:budget=20%,window=1.5", InvalidParameter, "window=1.5"),
        ("snapkv:budget=20%,kernel=wide", InvalidParameter, "kernel='wide'"),
        ("snapkv:budget=20%,pool=sum", InvalidParameter, "pool='sum'"),
        ("h2o:budget=20%,recent=half", InvalidParameter, "recent='half'"),
        ("random:budget=20%,seed=x", InvalidParameter, "seed='x'"),
        ("streaming_llm:budget=20%,sinks=x", InvalidParameter, "sinks='x'"),
        ("snapkv:budget=0%", InvalidBudget, "keeps nothing"),
    ],
)
def test_a_spec_that_cannot_be_read_says_what_is_wrong_with_it(spec, error, says):
    with pytest.raises(error) as refused, unchecked():
        foveate.policy(spec)
    assert says in str(refused.value)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_policy_can_be_pickled_and_keeps_its_name(name):
    policy = foveate.METHODS[name](**({} if name in WHOLE else {"budget": 0.25}))
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again.spec == policy.spec
