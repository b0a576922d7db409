"""Methods add up as docs/composition.md says; sums print and read back; what is wrong is said."""

import copy
import math
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate
from foveate.core.errors import (
    FoveateError,
    InvalidBudget,
    InvalidParameter,
    InvalidSpec,
    MissingModality,
    ProfileMismatch,
    UnknownMethod,
)
from foveate.core.profile import Profile
from foveate.core.protocols import NoMerge, Softmax
from foveate.core.spec import SLOTS, print_arguments
from foveate.papers.csp import CrossSelf, CrossSelfAttention
from foveate.papers.david import Decoupled, ModalityFusion
from foveate.papers.lookm import TextPrior
from foveate.papers.mixkv import MixDiversity
from foveate.papers.prefixkv import PrefixBudget
from foveate.stages.attend import SoftmaxN
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeNearest
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
from foveate.stages.store import Kivi
from foveate.stages.when import FixedSlot, OverBudget

from .labels import Label
from .lean import lean
from .prompts import GivenCounts, prompt
from .test_method import define, registry  # noqa: F401 (a fixture)
from .test_spec import PARAMETERS, WHOLE, amounts
from .users import unchecked

PAGE = Path(__file__).parents[2] / "docs" / "composition.md"
OWN = {
    "score": RandomScore(seed=77),
    "budget": GivenCounts(amount=50),
    "select": TopK(recent=3, sinks=3),
    "merge": Label(text="own"),
    "when": OverBudget(every=7),
    "attend": SoftmaxN(n=3.0),
    "store": Kivi(bits=8, group=7),
}
BRINGS = {
    "mixkv": {"score"},
    "prefixkv": {"budget", "when"},
    "csp": {"score", "select", "attend"},
    "david": {"score", "select"},
    "lookm": {"score", "merge"},
    "elastic_cache": {"score", "select", "merge", "when"},
    "infinipotv": {"score", "select", "when"},
    "kivi": {"store"},
    "meda": {"score", "budget", "merge"},
    **{name: {"budget"} for name in ("adakv", "pyramidkv")},
    **{name: {"score", "budget"} for name in ("tgv_kv", "vl_cache")},
    **{name: {"score", "select"} for name in (
        "expected_attention", "full", "h2o", "keydiff", "keyformer", "knorm", "nacl", "random",
        "roco", "snapkv", "streaming_llm", "tova", "vnorm",
    )},
}  # fmt: skip
CALIBRATED = {"headkv", "sparsemm"}  # cannot be made without a profile; they bring a budget
WRAPPING = {
    "mixkv": MixDiversity(of=OWN["score"]),
    "david": ModalityFusion(of=OWN["score"]),
    "lookm": TextPrior(of=OWN["score"]),
}


def theirs(name="theirs", stages=OWN, **options):
    """A third party's method with parameters of its own; stages that are no method's but its."""

    def build(*, budget, recent: int = 3, text: str = "own"):
        select = replace(stages["select"], recent=recent)
        merge = replace(stages["merge"], text=text)
        return foveate.Policy(**{**stages, "select": select, "merge": merge,
                                 "budget": GivenCounts(amount=budget)})  # fmt: skip

    build.__name__ = build.__qualname__ = name
    build.__module__ = "somewhere"
    return foveate.method(
        foveate.Paper(title="Sums", authors=("A, B",), year=2020, venue="V", key="theirs2020"),
        **options,
    )(build)


@pytest.fixture
def base(registry):  # noqa: F811
    """``theirs`` alone, at 50 tokens."""
    theirs()
    return foveate.policy("theirs:budget=50")


def alone_at_50(name):
    return foveate.policy(name if name in WHOLE else f"{name}:budget=50")


def stages_of(policy):
    return {slot: getattr(policy, slot) for slot in SLOTS}


def differing(policy, other):
    """The stages in which they differ."""
    return {slot for slot in SLOTS if getattr(policy, slot) != getattr(other, slot)}


# ------------------------------------------------------------------- what a sum consists of


def test_the_strange_method_of_this_file_shares_no_stage_with_another(base):
    assert stages_of(base) == OWN
    for name in BRINGS:
        other = alone_at_50(name)
        assert differing(base, other) == set(SLOTS)


def test_the_tests_of_this_file_know_every_method():
    assert set(BRINGS) | CALIBRATED == set(foveate.METHODS)
    assert all(foveate.METHODS[name].adds == ("budget",) for name in CALIBRATED)


@pytest.mark.parametrize("name", BRINGS)
def test_a_further_method_brings_along_these_stages_and_no_other(base, name):
    alone = alone_at_50(name)
    added = foveate.policy(f"theirs+{name}:budget=50")
    assert differing(added, base) == BRINGS[name]
    assert differing(added, alone) - BRINGS[name] == set(SLOTS) - BRINGS[name]
    for slot in BRINGS[name] - {"score"}:
        assert getattr(added, slot) == getattr(alone, slot)


@pytest.mark.parametrize("name", [name for name in BRINGS if "score" in BRINGS[name]])
def test_mixkv_david_and_lookm_wrap_the_score_that_is_there_and_the_others_replace_it(base, name):
    alone = alone_at_50(name)
    added = foveate.policy(f"theirs+{name}:budget=50")
    assert added.score == WRAPPING.get(name, alone.score)


@pytest.mark.parametrize("name", sorted(set(BRINGS) - WHOLE))
def test_the_first_method_gives_all_its_stages(base, name):
    alone = foveate.policy(f"{name}:budget=50")
    added = foveate.policy(f"{name}+theirs.merge:budget=50")
    assert differing(added, alone) == {"merge"}
    assert added.merge == OWN["merge"]


@pytest.mark.parametrize("slot", SLOTS)
def test_a_dot_takes_that_stage_alone_whether_or_not_the_method_brings_it_along(base, slot):
    snapkv = foveate.snapkv(budget=50)
    added = foveate.policy(f"snapkv+theirs.{slot}:budget=50")
    assert stages_of(added) == {**stages_of(snapkv), slot: OWN[slot]}


@pytest.mark.parametrize(
    ("term", "slot", "stage"),
    [
        ("prefixkv.budget", "budget", PrefixBudget(amount=50)),
        ("prefixkv.when", "when", FixedSlot()),
        ("prefixkv.select", "select", TopK(sinks=1, recent=1)),
        ("prefixkv.merge(merging=feature)", "merge", MergeNearest(how="averaged")),
        ("david.select", "select", Decoupled()),
        ("david.score", "score", WRAPPING["david"]),
        ("lookm.score", "score", WRAPPING["lookm"]),
        ("mixkv.score", "score", WRAPPING["mixkv"]),
        ("csp.score", "score", CrossSelfAttention()),
        ("csp.attend(decode_n=1.5)", "attend", SoftmaxN(n=1.5)),
        ("lookm.merge(merging=weighted)", "merge", MergeNearest(how="weighted")),
        ("snapkv.select(window=8)", "select", TopK(recent=8)),
    ],
)
def test_a_stage_alone_of_a_paper_is_this_one(base, term, slot, stage):
    added = foveate.policy(f"theirs+{term}:budget=50")
    assert stages_of(added) == {**OWN, slot: stage}


def test_terms_count_from_left_to_right():
    wrapped_last = foveate.policy("h2o+mixkv+lookm:budget=50")
    assert wrapped_last.score == TextPrior(of=MixDiversity(of=ColumnSums()))
    wrapped_first = foveate.policy("h2o+lookm+mixkv:budget=50")
    assert wrapped_first.score == MixDiversity(of=TextPrior(of=ColumnSums()))
    replaced = foveate.policy("h2o+lookm+knorm:budget=50")
    assert replaced.score == KeyNorm()
    assert foveate.policy("h2o+knorm+vnorm.score:budget=50").score == ValueNorm()
    three = foveate.policy("mixkv+lookm.merge+prefixkv.merge:budget=50")
    assert three.merge == NoMerge()


def test_lookm_without_text_prior_leaves_the_score_alone(base):
    added = foveate.policy("theirs+lookm(text_prior=false):budget=50")
    assert stages_of(added) == {**OWN, "merge": MergeNearest(how="pivotal")}
    for spec in ("theirs+lookm:budget=50,text_prior=false", "theirs+lookm.merge:budget=50"):
        assert foveate.policy(spec) == added


def test_prefixkv_does_not_bring_its_own_merge_along():
    assert foveate.policy("mixkv+prefixkv:budget=50").merge == NoMerge()
    assert foveate.policy("prefixkv+mixkv:budget=50,merging=position").merge == MergeNearest(
        by="position", how="averaged"
    )


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


# ------------------------------------------------------------------- the worked examples

EXAMPLES = {
    "mixkv+prefixkv+lookm.merge:budget=10%": foveate.Policy(
        score=MixDiversity(of=WindowAttention()),
        budget=PrefixBudget(amount="10%"),
        select=TopK(recent=32),
        merge=MergeNearest(by="cosine", how="pivotal"),
        when=FixedSlot(distance=25),
    ),
    "mixkv+prefixkv+lookm:budget=10%": foveate.Policy(
        score=TextPrior(of=MixDiversity(of=WindowAttention())),
        budget=PrefixBudget(amount="10%"),
        select=TopK(recent=32),
        merge=MergeNearest(by="cosine", how="pivotal"),
        when=FixedSlot(distance=25),
    ),
    "mixkv+david:budget=20%": foveate.Policy(
        score=ModalityFusion(of=MixDiversity(of=WindowAttention(window=32), window=32)),
        budget=Uniform(amount="20%"),
        select=Decoupled(recent=0.5),
    ),
    "mixkv+david:budget=20%,recent=32": foveate.Policy(
        score=ModalityFusion(of=MixDiversity(of=WindowAttention(window=32), window=32), window=32),
        budget=Uniform(amount="20%"),
        select=Decoupled(recent=32),
    ),
    "csp+prefixkv:budget=20%": foveate.Policy(
        score=CrossSelfAttention(window=0.5),
        budget=PrefixBudget(amount="20%"),
        select=CrossSelf(recent=0.5),
        when=FixedSlot(distance=25),
    ),
}


@pytest.mark.parametrize("spec", EXAMPLES)
def test_the_worked_examples_are_the_stages_that_the_page_lists(spec):
    assert foveate.policy(spec) == EXAMPLES[spec]
    assert foveate.policy(EXAMPLES[spec].spec) == EXAMPLES[spec]


def test_csp_and_prefixkv_add_up_in_either_order():
    assert foveate.policy("prefixkv+csp:budget=20%") == EXAMPLES["csp+prefixkv:budget=20%"]


def test_the_python_of_the_page_runs():
    given = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, given)


@pytest.mark.parametrize("spec", ["mixkv+csp", "mixkv+lookm.score+csp", "snapkv+lookm.select+csp"])
def test_what_is_replaced_is_gone(spec):
    assert foveate.policy(f"{spec}:budget=20%") == foveate.csp(budget=0.2)


def test_mixkv_and_snapkv_are_snapkv_and_not_the_reverse():
    assert foveate.policy("mixkv+snapkv:budget=20%") == foveate.snapkv(budget=0.2)
    assert foveate.policy("snapkv+mixkv:budget=20%") == foveate.mixkv(budget=0.2)


def test_the_scope_is_the_model_with_prefixkvs_budget_and_the_layer_without_it():
    for spec in ("mixkv+prefixkv", "csp+prefixkv.budget", "prefixkv+csp", "lookm+prefixkv+david"):
        assert foveate.policy(f"{spec}:budget=20%").scope == "model"
    for spec in ("mixkv+david", "csp+prefixkv.when", "mixkv+lookm", "csp+mixkv"):
        assert foveate.policy(f"{spec}:budget=20%").scope == "layer"


# ------------------------------------------------------------------- what a sum does

SUMS = [
    "mixkv(window=4)+prefixkv+lookm.merge",
    "mixkv(window=4)+prefixkv+lookm",
    "mixkv(window=4)+david",
    "csp+prefixkv",
    "prefixkv+csp+lookm.merge",
    "knorm+mixkv(window=4)+prefixkv(distance=3)",
    "h2o+david+prefixkv",
    "streaming_llm+lookm",
]


@pytest.mark.parametrize("budget", [30, 40])
@pytest.mark.parametrize("spec", SUMS)
def test_budgets_stay_exact_whatever_the_sum(spec, budget):
    given = prompt([30, 21], h=2, g=2, depth=3, seed=3)
    kept = foveate.compress_tensors(
        foveate.policy(spec, budget=f"{budget}%"), given.layers, given.vision, given.mask
    )
    held = sum(layer.counts.sum(-1) for layer in kept).tolist()
    assert held == [2 * 3 * (length * budget // 100) for length in (30, 21)]


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ("knorm+csp", True),
        ("knorm+csp.score", True),
        ("h2o+david", True),
        ("h2o+david.score", True),
        ("h2o+lookm", True),
        ("h2o+lookm.score", True),
        ("h2o+lookm.merge", False),
        ("h2o+lookm(text_prior=false)", False),
        ("mixkv(window=4)+prefixkv+lookm.merge", False),
    ],
)
def test_one_stage_that_asks_what_is_visual_is_enough_for_the_sum_to_ask(spec, asks):
    given, policy = prompt([30], h=2, depth=2), foveate.policy(spec, budget=0.3)
    foveate.compress_tensors(policy, given.layers, given.vision)
    if asks:
        with pytest.raises(MissingModality, match="vision="):
            foveate.compress_tensors(policy, given.layers)
    else:
        foveate.compress_tensors(policy, given.layers)


def test_mixing_before_csps_selection_changes_nothing_that_is_kept():
    given = prompt([40], h=2, g=2, depth=2, seed=5)
    csp, mixed = foveate.csp(budget=0.5), foveate.policy("csp+mixkv(window=4):budget=50%")
    assert mixed.score != csp.score
    for ours, mix in zip(
        foveate.compress_tensors(csp, given.layers, given.vision),
        foveate.compress_tensors(mixed, given.layers, given.vision),
        strict=True,
    ):
        assert torch.equal(ours.mask, mix.mask)


def test_text_comes_before_images_if_the_prior_is_added_last():
    given = prompt([40], h=2, depth=2, seed=6)
    text = ~given.vision[0]
    assert 8 < int(text.sum()) < 30
    policy = foveate.policy("knorm+mixkv(window=4)+lookm:budget=75%")
    for kept in foveate.compress_tensors(policy, given.layers, given.vision):
        assert bool(kept.mask[0, :, text].all())


# ------------------------------------------------------------------- text and back


def assert_reads_back(policy):
    again = foveate.policy(policy.spec)
    assert again == policy
    assert again.spec == policy.spec == str(policy)
    assert again.name == policy.name


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


def added(drawn):
    """The sum, with as many of the parameters as change something in it."""
    found, budget = drawn
    texts = [text for text, _ in found]
    for place, (text, own) in enumerate(found):
        more = [*texts[:place], f"{text}({print_arguments(own)})", *texts[place + 1 :]]
        try:
            foveate.policy("+".join(more), budget=budget)
        except InvalidParameter as refused:
            if "changes nothing" not in str(refused):
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


@settings(lean, max_examples=25)
@given(drawn=terms())
def test_sums_survive_pickling_and_copying(drawn):
    _, policy = added(drawn)
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), copy.copy(policy)):
        assert again == policy
        assert again.spec == policy.spec
        assert again.but(budget=500) == policy.but(budget=500)


@settings(lean, max_examples=25)
@given(drawn=terms(), other=amounts)
def test_sums_take_other_budgets_and_stages(drawn, other):
    text, policy = added(drawn)
    changed = policy.but(budget=other)
    assert changed == foveate.policy(text, budget=other)
    assert changed.but(budget=drawn[1]) == policy
    assert_reads_back(changed)
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
    profile = Profile(method="prefixkv", model="m", layers=2, samples=1, budget="10%",
                      by_layer=[0.15, 0.05])  # fmt: skip
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


def test_a_profile_after_the_colon_goes_to_both_methods_and_is_refused_by_one(tmp_path):
    path = ratios_in(tmp_path / "ratios.json")
    with pytest.raises(ProfileMismatch, match="a profile of prefixkv, not of mixkv"):
        foveate.policy("mixkv+prefixkv:budget=10%", profile=path)


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
        ("mixkv+zzz.merge:budget=20%", UnknownMethod, ["'zzz'", "Known: adakv, csp"]),
        ("mixkv+policy:budget=20%", UnknownMethod, ["'policy'", "Known: adakv, csp"]),
        ("mixkv+lookm.mege:budget=20%", InvalidSpec,
         ["'lookm.mege'", "no stage 'mege'", "Did you mean 'merge'?"]),
        ("mixkv+lookm.window:budget=20%", InvalidSpec,
         ["no stage 'window'", "Known: attend, budget, merge, score, select, store, when"]),
        ("mixkv.score+prefixkv:budget=20%", InvalidSpec,
         ["'mixkv.score'", "the first method of a sum gives all its stages"]),
        ("mixkv.score:budget=20%", InvalidSpec, ["'mixkv.score'", "the first method"]),
        ("+mixkv:budget=20%", InvalidSpec, ["'+mixkv' adds nothing", "beside a plus sign"]),
        ("mixkv+:budget=20%", InvalidSpec, ["'mixkv+' adds nothing", "beside a plus sign"]),
        (" mixkv + : budget=20%", InvalidSpec, ["adds nothing", "beside a plus sign"]),
        ("+:budget=20%", InvalidSpec, ["'+' adds nothing"]),
        ("mixkv+prefixkv:budget=20%,windw=4", InvalidParameter,
         ["no method of mixkv+prefixkv", "'windw'", "Did you mean 'window'?"]),
        ("mixkv+prefixkv:budget=20%,sinks=4", InvalidParameter,
         ["no method of mixkv+prefixkv", "'sinks'", "Known: budget, counted_from"]),
        ("mixkv(windw=4)+prefixkv:budget=20%", InvalidParameter,
         ["mixkv has no parameter 'windw'", "Did you mean 'window'?"]),
        ("mixkv+prefixkv(window=4):budget=20%", InvalidParameter,
         ["prefixkv has no parameter 'window'"]),
        ("mixkv(window=4)+prefixkv:budget=20%,window=8", InvalidParameter, ["'window'"]),
        ("mixkv+prefixkv", InvalidParameter, ["needs a budget", "budget=20%"]),
        ("full+mixkv", InvalidParameter, ["mixkv needs a budget", "budget=20%"]),
        ("mixkv+prefixkv:budget=0%", InvalidBudget, ["'0%' keeps nothing"]),
        ("mixkv+prefixkv:budget=20", InvalidBudget, ["budget 20", "32 tokens", "lower the window"]),
        ("mixkv+prefixkv(8):budget=20%", InvalidSpec, ["'8' is not of the form key=value"]),
        ("mixkv+prefixkv(distance=8:budget=20%", InvalidSpec, ["unclosed parenthesis"]),
        ("mixkv+prefixkv(distance=8)9:budget=20%", InvalidSpec,
         ["'prefixkv(distance=8)9'", "method.stage or method(key=value)"]),
        ("mixkv,prefixkv:budget=20%", InvalidSpec,
         ["'mixkv,prefixkv'", "write method, method.stage or method(key=value)"]),
        ("mixkv+2lookm:budget=20%", InvalidSpec, ["'2lookm'"]),
        ("mixkv+lookm.merge.score:budget=20%", InvalidSpec, ["'lookm.merge.score'"]),
        ("mixkv+prefixkv(when=after_prefill):budget=20%", InvalidParameter,
         ["prefixkv has no parameter 'when'"]),
        ("mixkv+prefixkv:budget=20%,when=after_prefil", UnknownMethod,
         ["Did you mean 'after_prefill'?"]),
        ("prefixkv+lookm:budget=20%,merging=pivotal", InvalidParameter,
         ["merging='pivotal'", "'position', 'feature'"]),
    ],
)  # fmt: skip
def test_a_sum_that_cannot_be_read_says_what_is_wrong_with_it(spec, error, says):
    with pytest.raises(error) as refused, unchecked():
        foveate.policy(spec)
    for part in says:
        assert part in str(refused.value)


def test_two_plus_signs_in_a_row_have_no_method_between_them():
    with pytest.raises(InvalidSpec, match="beside a plus sign"):
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
    assert f"that {method} would use it in" in text
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
    """Without it the sum could not be made, so it changes something."""
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
        ("prefixkv+mixkv:budget=10",
         foveate.prefixkv(budget=10).but(score=MixDiversity(of=HeadMean(of=ColumnSums())))),
    ],
)  # fmt: skip
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


# ------------------------------------------------------------------- methods of third parties


@pytest.mark.usefixtures("registry")
def test_a_method_of_a_third_party_is_a_term_like_any_other():
    define("latest", "somewhere")
    added = foveate.policy("mixkv+latest(recent=9)+prefixkv:budget=20%")
    assert added == foveate.Policy(
        score=Recency(),
        budget=PrefixBudget(amount="20%"),
        select=TopK(recent=9),
        when=FixedSlot(),
    )
    assert_reads_back(added)
    assert pickle.loads(pickle.dumps(added)) == added
    first = foveate.policy("latest+mixkv:budget=20%,recent=9")
    assert first.score == MixDiversity(of=Recency())
    assert first.select == TopK(recent=9)
    assert [paper.key for paper in first.origin.build.papers] == ["k", "liu2026mixkv"]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    "adds", [("score",), ("merge", "when"), ("budget",), ("attend", "select"), SLOTS, ()]
)
def test_a_method_brings_along_what_it_says_that_it_adds(adds):
    theirs(adds=adds)
    added = foveate.policy("snapkv+theirs:budget=50")
    expected = {**stages_of(foveate.snapkv(budget=50)), **{slot: OWN[slot] for slot in adds}}
    assert stages_of(added) == expected
    for slot in SLOTS:  # a dot reaches the others too
        assert getattr(foveate.policy(f"snapkv+theirs.{slot}:budget=50"), slot) == OWN[slot]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("wraps", [True, False])
def test_a_method_that_says_so_wraps_the_score_that_is_there(wraps):
    of_its_own = HeadMean(of=Recency())
    theirs(stages={**OWN, "score": of_its_own}, wraps=wraps)
    snapkv = foveate.snapkv(budget=50)
    expected = HeadMean(of=snapkv.score) if wraps else of_its_own
    for spec in ("snapkv+theirs:budget=50", "snapkv+theirs.score:budget=50"):
        assert foveate.policy(spec).score == expected
    assert foveate.policy("theirs+snapkv.select:budget=50").score == of_its_own


@pytest.mark.usefixtures("registry")
def test_a_score_that_wraps_nothing_leaves_the_one_that_is_there_if_its_method_wraps():
    theirs(wraps=True)
    assert foveate.policy("snapkv+theirs:budget=50").score == WindowAttention()


@pytest.mark.parametrize("slot", sorted(set(SLOTS) - {"budget"}))
def test_a_method_with_a_parameter_named_like_a_stage_is_refused(registry, slot):  # noqa: F811
    def loose(*, budget, **stage):
        return foveate.knorm(budget=budget)

    namespace = {}
    exec(f"def loose(*, budget, {slot}='none'): ...", namespace)
    with pytest.raises(InvalidParameter, match=rf"loose: '{slot}' is a stage.*otherwise"):
        foveate.method()(namespace["loose"])
    assert "loose" not in registry


def test_plain_softmax_and_no_merge_are_what_the_papers_bring_unless_told_otherwise():
    added = foveate.policy("lookm+csp+prefixkv.merge:budget=20%,attend=softmax")
    assert (added.attend, added.merge) == (Softmax(), NoMerge())
    assert math.isclose(added.attend.n, 0.0)
