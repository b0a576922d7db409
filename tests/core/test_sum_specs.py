"""Sums as text: where their parameters go, how they print and read back, what is refused."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.errors import (
    FoveateError,
    InvalidBudget,
    InvalidParameter,
    InvalidSpec,
    ProfileMismatch,
    UnknownMethod,
)
from foveate.methods.csp import CrossSelf, CrossSelfAttention, SoftmaxN
from foveate.methods.david import Decoupled, ModalityFusion
from foveate.methods.lookm import TextPrior
from foveate.methods.mixkv import MixDiversity
from foveate.methods.prefixkv import PrefixBudget
from foveate.policies.spec import SLOTS, print_arguments
from foveate.profiles.profile import Profile
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeNearest
from foveate.stages.score import ColumnSums, HeadMean, KeyNorm, WindowAttention
from foveate.stages.select import TopK
from foveate.stages.when import FixedSlot, OverBudget
from tests.profiles import saved

from .lean import lean, leaner
from .sums import EXAMPLES, assert_reads_back, stages_of
from .test_spec import PARAMETERS, WHOLE, amounts
from .users import unchecked

# ------------------------------------------------------------------- parameters


def test_parameters_in_parentheses_are_the_methods_own():
    policy = foveate.policy("mixkv(window=16)+prefixkv+lookm(merging=averaged):budget=10%")
    expected = foveate.mixkv(budget="10%", window=16)
    assert policy == expected.but(
        score=TextPrior(of=expected.score),
        budget=PrefixBudget(amount="10%"),
        merge=MergeNearest(how="averaged"),
        when=FixedSlot(),
    )


def test_parameters_after_the_colon_go_to_every_method_that_has_them():
    policy = foveate.policy("csp+david:budget=20%,recent=16")
    assert policy.score == ModalityFusion(of=CrossSelfAttention(window=16), window=16)
    assert policy.select == Decoupled(recent=16)


def test_a_parameter_in_parentheses_goes_before_that_after_the_colon():
    policy = foveate.policy("csp+david(recent=8):budget=20%,recent=16")
    assert policy.score == ModalityFusion(of=CrossSelfAttention(window=16), window=8)
    assert policy.select == Decoupled(recent=8)


def test_the_budget_goes_to_every_method():
    assert foveate.policy("mixkv+prefixkv:budget=20%").budget == PrefixBudget(amount=0.2)
    assert foveate.policy("prefixkv+mixkv:budget=20%").budget == PrefixBudget(amount=0.2)
    assert foveate.policy("mixkv+csp:budget=64").budget == Uniform(amount=64)


@pytest.mark.parametrize(
    ("text", "slot", "stage"),
    [
        ("score=key_norm", "score", KeyNorm()),
        ("budget=uniform(amount=10%)", "budget", Uniform(amount="10%")),
        ("select=top_k(recent=5)", "select", TopK(recent=5)),
        ("merge=merge_nearest", "merge", MergeNearest()),
        ("when=over_budget(every=3)", "when", OverBudget(every=3)),
        ("attend=softmax_n(n=2.0)", "attend", SoftmaxN(n=2.0)),
    ],
)
def test_stages_after_the_colon_replace_those_of_the_sum(text, slot, stage):
    budget = "" if slot == "budget" else "budget=10%,"
    policy = foveate.policy(f"mixkv+prefixkv:{budget}{text}")
    plain = foveate.policy("mixkv+prefixkv:budget=10%")
    assert stages_of(policy) == {**stages_of(plain), slot: stage}
    assert foveate.policy(policy.spec) == policy


def test_after_prefill_after_the_colon_takes_prefixkvs_rule_out():
    policy = foveate.policy("mixkv+prefixkv:budget=10%,when=after_prefill")
    assert policy == foveate.mixkv(budget="10%").but(budget=PrefixBudget(amount="10%"))


def test_one_method_with_its_parameters_in_parentheses_is_that_method():
    assert foveate.policy("mixkv(window=16):budget=10%") == foveate.mixkv(budget=0.1, window=16)


# ------------------------------------------------------------------- text and back


@st.composite
def terms(draw):
    """Up to four methods, some with one stage alone, each perhaps with a parameter of its own; and
    a budget above all that they protect.
    """
    # `full` and `kivi` keep everything whatever the budget, which would then change nothing
    first = draw(st.sampled_from(sorted({*PARAMETERS} - WHOLE)))
    names = [first, *draw(st.lists(st.sampled_from(sorted(PARAMETERS)), min_size=1, max_size=3))]
    slots = [None, *(draw(st.sampled_from([None, None, *SLOTS])) for _ in names[1:])]
    slots = [None if n in WHOLE and s == "budget" else s for n, s in zip(names, slots, strict=True)]
    found = []
    for name, slot in zip(names, slots, strict=True):
        parameter = draw(st.sampled_from([None, *PARAMETERS[name]]))
        own = {} if parameter is None else {parameter: draw(PARAMETERS[name][parameter])}
        found.append((name if slot is None else f"{name}.{slot}", own))
    return found, draw(amounts)


def refused_alone(text, own):
    """Whether the method itself takes no such parameter, whatever it is added to."""
    name = text.partition(".")[0]
    try:
        foveate.METHODS[name](**own, **({} if name in WHOLE else {"budget": 1000}))
    except InvalidParameter:
        return True
    return False


def added(drawn):
    """The sum, with as many of the parameters as change something in it."""
    found, budget = drawn
    texts = [text for text, _ in found]
    for place, (text, own) in enumerate(found):
        more = [*texts[:place], f"{text}({print_arguments(own)})", *texts[place + 1 :]]
        try:
            foveate.policy("+".join(more), budget=budget)
        except InvalidParameter as refused:
            if "changes nothing" not in str(refused) and not refused_alone(text, own):
                raise
        else:
            texts = more if own else texts
    return "+".join(texts), foveate.policy("+".join(texts), budget=budget)


@lean
@given(drawn=terms())
def test_sums_print_as_specs_that_make_equal_sums(drawn):
    text, policy = added(drawn)
    assert policy.spec.startswith(f"{text}:budget=")
    assert policy.name == text
    assert_reads_back(policy)


@leaner
@given(drawn=terms())
def test_sums_survive_pickling_and_copying(drawn):
    _, policy = added(drawn)
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), copy.copy(policy)):
        assert again == policy
        assert again.spec == policy.spec
        assert again.but(budget=500) == policy.but(budget=500)


@leaner
@given(drawn=terms(), other=amounts)
def test_sums_take_other_budgets_and_stages(drawn, other):
    text, policy = added(drawn)
    changed = policy.but(budget=other)
    assert changed == foveate.policy(text, budget=other)
    assert changed.but(budget=drawn[1]) == policy
    assert_reads_back(changed)
    if policy.reads_again:
        with pytest.raises(InvalidParameter, match="read again"):
            policy.but(when=OverBudget(every=3))
        return
    later = policy.but(when=OverBudget(every=3))
    assert stages_of(later) == {**stages_of(policy), "when": OverBudget(every=3)}
    assert_reads_back(later)
    assert later.but(budget=other) == changed.but(when=OverBudget(every=3))


def test_the_spec_of_a_sum_names_what_was_written_and_what_differs_from_the_defaults():
    for spec in (
        "mixkv+prefixkv+lookm.merge:budget=10%",
        "mixkv(window=16)+prefixkv:budget=10%,distance=5",
        "mixkv+prefixkv:budget=10%,window=16,when=after_prefill()",
        "csp+david(recent=8):budget=20%,recent=16",
    ):
        assert foveate.policy(spec).spec == spec
    spelt_out = foveate.policy("mixkv+prefixkv():kernel=5,distance=25,budget=0.1")
    assert spelt_out.spec == "mixkv+prefixkv:budget=10%"


@pytest.mark.parametrize(
    "spec",
    [
        "mixkv + prefixkv + lookm.merge : budget=10%",
        " mixkv+ prefixkv +lookm . merge:budget = 10% ",
        "mixkv +prefixkv+\nlookm.merge:budget=10%",
        "mixkv () + prefixkv( ) + lookm.merge () : budget=10%",
    ],
)
def test_spaces_are_allowed_around_everything(spec):
    policy = foveate.policy(spec)
    assert policy == EXAMPLES["mixkv+prefixkv+lookm.merge:budget=10%"]
    assert policy.spec == "mixkv+prefixkv+lookm.merge:budget=10%"


@pytest.mark.parametrize("budget", [0.1, "10%", 64, "64MB"])
def test_keyword_arguments_go_to_a_sum(budget):
    policy = foveate.policy("mixkv+prefixkv", budget=budget, window=16)
    assert policy == foveate.policy(f"mixkv+prefixkv:window=16,budget={budget}")
    assert policy.budget == PrefixBudget(amount=budget)
    assert foveate.policy(policy, budget=99) == policy.but(budget=99)


def test_another_parameter_or_stage_of_a_sum():
    policy = foveate.policy("mixkv+prefixkv:budget=10%")
    assert policy.but(window=16).spec == "mixkv+prefixkv:budget=10%,window=16"
    assert policy.but(when="after_prefill") == foveate.policy(f"{policy.spec},when=after_prefill")
    uniform = policy.but(budget=Uniform(amount="30%"))
    assert uniform.budget == Uniform(amount="30%")
    assert uniform.but(budget="40%").budget == Uniform(amount="40%")
    with pytest.raises(InvalidParameter, match=r"'windo'\. Did you mean 'window'\?"):
        policy.but(windo=16)


def test_a_sum_is_named_after_its_terms_and_cites_all_their_papers_in_order():
    policy = foveate.policy("mixkv(window=16)+full.select+prefixkv+lookm.merge:budget=10%")
    assert policy.name == "mixkv(window=16)+full.select+prefixkv+lookm.merge"
    keys = [paper.key for paper in policy.origin.build.papers]
    assert keys == ["liu2026mixkv", "wang2025prefixkv", "wan2024lookm"]


def test_a_paper_that_two_terms_share_is_cited_once():
    policy = foveate.policy("csp+lookm.score+lookm.merge:budget=10%")
    keys = [paper.key for paper in policy.origin.build.papers]
    assert keys == ["pei2024csp", "wan2024lookm"]


def ratios_in(path):
    profile = Profile(
        method="prefixkv", model="m", layers=2, samples=1, budget="10%", by_layer=[0.15, 0.05]
    )
    return str(profile.save(path))


@pytest.mark.parametrize("name", ["plain.json", "a+b.json", "a:b.json", "it's, (so) = +.json"])
def test_a_term_has_a_profile_of_its_own_whatever_the_files_name(tmp_path, name):
    path = ratios_in(tmp_path / name)
    own = print_arguments({"profile": path})
    policy = foveate.policy(f"mixkv+prefixkv({own}):budget=10%")
    assert policy.budget == PrefixBudget(amount="10%", profile=path)
    assert policy.score == MixDiversity(of=WindowAttention())
    assert_reads_back(policy)
    assert pickle.loads(pickle.dumps(policy)).spec == policy.spec
    with pytest.raises(ProfileMismatch, match="10%, not 20%"):
        policy.but(budget="20%")


def test_a_profile_after_the_colon_goes_to_the_method_that_it_is_of(tmp_path):
    path = ratios_in(tmp_path / "ratios.json")
    policy = foveate.policy("mixkv+prefixkv:budget=10%", profile=path)
    assert (policy.budget.profile, policy.score.profile) == (path, None)
    assert_reads_back(policy)
    with pytest.raises(ProfileMismatch, match="a profile of prefixkv, not of mixkv"):
        foveate.policy("mixkv+headkv.budget:budget=10%", profile=path)


def test_each_term_has_its_own_profile_before_or_after_its_stage(tmp_path):
    heads = saved(tmp_path, "headkv", [[0.5, 0.5], [0.1, 0.9]])
    redundancies = saved(tmp_path, "mixkv", [[0.5, 0.5], [0.1, 0.9]])
    spec = f"keydiff+headkv(profile={heads}).budget+mixkv(profile={redundancies}):budget=10%"
    policy = foveate.policy(spec)
    assert (policy.budget.profile, policy.score.profile) == (str(heads), str(redundancies))
    other = spec.replace(f"(profile={heads}).budget", f".budget(profile={heads})")
    assert policy == foveate.policy(other)
    assert_reads_back(policy)


@pytest.mark.parametrize("name", ["a:b.json", "a::b.json", "a.json:", "a.json::"])
def test_a_file_name_with_colons_after_the_colon_reads_back(tmp_path, name):
    path = ratios_in(tmp_path / name)
    assert_reads_back(foveate.policy("csp+prefixkv:budget=10%", profile=path))
    assert_reads_back(foveate.prefixkv(budget="10%", profile=path))


# ------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("mixkv+prefixvk:budget=20%", UnknownMethod, ["'prefixvk'", "Did you mean 'prefixkv'?"]),
        ("mixvk+prefixkv:budget=20%", UnknownMethod, ["'mixvk'", "Did you mean 'mixkv'?"]),
        ("mixkv+zzz.merge:budget=20%", UnknownMethod, ["'zzz'", "Known: adakv, "]),
        ("mixkv+policy:budget=20%", UnknownMethod, ["'policy'", "Known: adakv, "]),
        (
            "mixkv+lookm.mege:budget=20%",
            InvalidSpec,
            ["'lookm.mege'", "no stage 'mege'", "Did you mean 'merge'?"],
        ),
        (
            "mixkv+lookm.window:budget=20%",
            InvalidSpec,
            ["no stage 'window'", "Known: attend, budget, merge, score, select, store, when"],
        ),
        (
            "mixkv.score+prefixkv:budget=20%",
            InvalidSpec,
            ["'mixkv.score'", "the first method of a sum gives all its stages"],
        ),
        ("mixkv.score:budget=20%", InvalidSpec, ["'mixkv.score'", "the first method"]),
        (
            "+mixkv:budget=20%",
            InvalidSpec,
            ["'+mixkv' needs a method", "each side of every plus sign"],
        ),
        (
            "mixkv+:budget=20%",
            InvalidSpec,
            ["'mixkv+' needs a method", "each side of every plus sign"],
        ),
        (" mixkv + : budget=20%", InvalidSpec, ["needs a method", "each side of every plus sign"]),
        ("+:budget=20%", InvalidSpec, ["'+' needs a method"]),
        (
            "mixkv+prefixkv:budget=20%,windw=4",
            InvalidParameter,
            ["no method of mixkv+prefixkv", "'windw'", "Did you mean 'window'?"],
        ),
        (
            "mixkv+prefixkv:budget=20%,lag=4",
            InvalidParameter,
            ["no method of mixkv+prefixkv", "'lag'", "Known: budget, clamped, counted_from"],
        ),
        (
            "mixkv(windw=4)+prefixkv:budget=20%",
            InvalidParameter,
            ["mixkv has no parameter 'windw'", "Did you mean 'window'?"],
        ),
        (
            "mixkv+prefixkv(window=4):budget=20%",
            InvalidParameter,
            ["prefixkv has no parameter 'window'"],
        ),
        ("mixkv(window=4)+prefixkv:budget=20%,window=8", InvalidParameter, ["'window'"]),
        ("mixkv+prefixkv", InvalidParameter, ["needs a budget", "budget=20%"]),
        ("full+mixkv", InvalidParameter, ["mixkv needs a budget", "budget=20%"]),
        ("mixkv+prefixkv:budget=0%", InvalidBudget, ["'0%' keeps nothing"]),
        ("mixkv+prefixkv(8):budget=20%", InvalidSpec, ["'8' is not of the form key=value"]),
        ("mixkv+prefixkv(distance=8:budget=20%", InvalidSpec, ["unclosed parenthesis"]),
        (
            "mixkv+prefixkv(distance=8)9:budget=20%",
            InvalidSpec,
            ["'prefixkv(distance=8)9'", "method.stage or method(key=value)"],
        ),
        (
            "mixkv,prefixkv:budget=20%",
            InvalidSpec,
            ["'mixkv,prefixkv'", "write method, method.stage or method(key=value)"],
        ),
        ("mixkv+2lookm:budget=20%", InvalidSpec, ["'2lookm'"]),
        ("mixkv+lookm.merge.score:budget=20%", InvalidSpec, ["'lookm.merge.score'"]),
        (
            "mixkv+prefixkv(when=after_prefill):budget=20%",
            InvalidParameter,
            ["prefixkv has no parameter 'when'"],
        ),
        (
            "mixkv+prefixkv:budget=20%,when=after_prefil",
            UnknownMethod,
            ["Did you mean 'after_prefill'?"],
        ),
        (
            "prefixkv+lookm:budget=20%,merging=pivotal",
            InvalidParameter,
            ["merging='pivotal'", "'position', 'feature'"],
        ),
    ],
)
def test_a_sum_that_cannot_be_read_says_what_is_wrong_with_it(spec, error, says):
    with pytest.raises(error) as refused, unchecked():
        foveate.policy(spec)
    for part in says:
        assert part in str(refused.value)


def test_two_plus_signs_in_a_row_have_no_method_between_them():
    with pytest.raises(InvalidSpec, match="each side of every plus sign"):
        foveate.policy("mixkv++prefixkv:budget=20%")


@pytest.mark.parametrize(
    ("spec", "named", "method"),
    [
        ("mixkv+csp:budget=20%,window=8", "window=8", "mixkv"),
        ("mixkv+prefixkv:budget=20%,merging=position", "merging=position", "prefixkv"),
        ("mixkv+prefixkv.budget:budget=20%,distance=5", "distance=5", "prefixkv"),
        ("mixkv+prefixkv:budget=20%,counted_from=prompt,merging=feature", "merging", "prefixkv"),
        ("snapkv+mixkv+csp:budget=20%,kernel=7", "kernel=7", "snapkv and mixkv"),
        ("h2o+david:budget=20%,pool_window=true", "pool_window=True", "david"),
        ("mixkv(window=8)+csp:budget=20%", "window=8", "mixkv"),
        ("mixkv+prefixkv(merging=position):budget=20%", "merging=position", "prefixkv"),
        ("mixkv+lookm.merge(text_prior=false):budget=20%", "text_prior=False", "lookm"),
        ("mixkv+prefixkv.budget(distance=5):budget=20%", "distance=5", "prefixkv"),
        ("snapkv(kernel=7)+snapkv:budget=20%", "kernel=7", "snapkv"),
        ("h2o+mixkv(kernel=7):budget=20%", "kernel=7", "mixkv"),
        ("csp+david(recent=9)+csp:budget=20%", "recent=9", "david"),
    ],
)
def test_a_parameter_that_changes_nothing_is_refused_wherever_it_stands(spec, named, method):
    with pytest.raises(InvalidParameter) as refused:
        foveate.policy(spec)
    name, _, _ = spec.partition(":")
    text = str(refused.value)
    assert text.startswith(named)
    assert f"changes nothing in {name}: " in text
    assert f"in which {method} would use it" in text
    assert text.endswith("Leave it out.")


@pytest.mark.parametrize("term", ["mixkv(kernel=5)", "lookm.merge(recent=0.5)", "david(kernel=5)"])
def test_a_default_that_is_written_out_is_not_refused(term):
    bare = term.partition("(")[0]
    for spec in (f"csp+{term}:budget=20%", f"csp+{bare}:budget=20%,{term.partition('(')[2][:-1]}"):
        assert foveate.policy(spec) == foveate.policy(f"csp+{bare}:budget=20%")


@pytest.mark.parametrize(
    ("spec", "protects"),
    [
        ("mixkv+prefixkv:budget=10,window=4", 4),
        ("mixkv(window=4)+prefixkv:budget=10", 4),
        ("snapkv+mixkv.score(window=4):budget=20,window=8", 8),
        ("streaming_llm+lookm:budget=3,sinks=2", 2),
        ("streaming_llm(sinks=2)+mixkv(window=2):budget=3", 2),
    ],
)
def test_a_parameter_may_be_what_lets_the_budget_hold_what_is_protected(spec, protects):
    """Without it the budget would be raised, so it changes something."""
    assert foveate.policy(spec).select.protects == protects


@pytest.mark.parametrize(
    "spec",
    [
        "csp+prefixkv:budget=20%,recent=0.25,bias=3.0",
        "csp(recent=0.25,bias=3.0)+prefixkv:budget=20%",
        "csp(recent=0.25)+prefixkv:budget=20%,bias=3.0",
    ],
)
def test_a_parameter_may_be_what_makes_another_one_possible(spec):
    assert foveate.policy(spec).select == CrossSelf(recent=0.75)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("mixkv+csp:budget=20", foveate.csp(budget=20)),
        ("mixkv+snapkv(window=4):budget=10", foveate.snapkv(budget=10, window=4)),
        (
            "prefixkv+mixkv:budget=10",
            foveate.prefixkv(budget=10).but(score=MixDiversity(of=HeadMean(of=ColumnSums()))),
        ),
    ],
)
def test_a_selection_that_is_not_part_of_the_sum_does_not_limit_its_budget(spec, same):
    assert foveate.policy(spec) == same


@pytest.mark.parametrize(
    "spec",
    [
        "full+mixkv:budget=10%",
        "mixkv+prefixkv(budget=20%):budget=10%",
        "mixkv+david(budget=20%):budget=10%",
    ],
)
def test_a_budget_that_changes_nothing_is_refused_too(spec):
    with pytest.raises(FoveateError, match="changes nothing"):
        foveate.policy(spec)


def test_a_window_that_one_of_the_methods_has_anyway_may_be_written_out():
    """So that every spec of a table that compares says the same."""
    same = "window=32,kernel=5,pool=avg"
    for method in ("pyramidkv", "adakv"):
        said = foveate.policy(f"mixkv+{method}:budget=64,{same}")
        assert said == foveate.policy(f"mixkv+{method}:budget=64")
        assert foveate.policy(said.spec) == said
        with pytest.raises(InvalidParameter, match="kernel=9 changes nothing"):
            foveate.policy(f"csp+{method}.budget:budget=64,kernel=9")
