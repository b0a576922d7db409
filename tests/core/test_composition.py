"""Methods add up as docs/composition.md says."""

import math
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import foveate
from foveate.errors import (
    InvalidParameter,
    MissingModality,
)
from foveate.methods.csp import CrossSelfAttention, SoftmaxN
from foveate.methods.david import Decoupled
from foveate.methods.kivi import Kivi
from foveate.methods.lookm import TextPrior
from foveate.methods.mixkv import MixDiversity
from foveate.methods.prefixkv import PrefixBudget
from foveate.policies.protocols import NoMerge, Softmax
from foveate.policies.spec import SLOTS
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
from foveate.stages.when import FixedSlot, OverBudget

from .labels import Label
from .parameters import NEEDS_PROFILE
from .prompts import GivenCounts, prompt
from .sums import EXAMPLES, assert_reads_back, stages_of
from .test_method import define, registry  # noqa: F401 (a fixture)
from .test_spec import WHOLE

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
    name: set(method.adds)
    for name, method in foveate.METHODS.items()
    if name not in NEEDS_PROFILE  # without one there is nothing to add
}


def theirs(name="theirs", stages=OWN, **options):
    """A third party's method with parameters of its own; stages that are no method's but its."""

    def build(*, budget, recent: int = 3, text: str = "own"):
        select = replace(stages["select"], recent=recent)
        merge = replace(stages["merge"], text=text)
        return foveate.Policy(
            **{**stages, "select": select, "merge": merge, "budget": GivenCounts(amount=budget)}
        )

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


def wrapping(name):
    """The method's score around the one of ``theirs``."""
    return replace(alone_at_50(name).score, of=OWN["score"])


def differing(policy, other):
    """The stages in which they differ."""
    return {slot for slot in SLOTS if getattr(policy, slot) != getattr(other, slot)}


# ------------------------------------------------------------------- what a sum consists of


def test_the_strange_method_of_this_file_shares_no_stage_with_another(base):
    assert stages_of(base) == OWN
    for name in BRINGS:
        other = alone_at_50(name)
        assert differing(base, other) == set(SLOTS)


@pytest.mark.parametrize("name", BRINGS)
def test_a_further_method_brings_along_these_stages_and_no_other(base, name):
    alone = alone_at_50(name)
    added = foveate.policy(f"theirs+{name}:budget=50")
    assert differing(added, base) == BRINGS[name]
    assert differing(added, alone) - BRINGS[name] == set(SLOTS) - BRINGS[name]
    for slot in BRINGS[name] - {"score"}:
        assert getattr(added, slot) == getattr(alone, slot)


@pytest.mark.parametrize("name", [name for name in BRINGS if "score" in BRINGS[name]])
def test_a_score_that_wraps_takes_in_the_one_that_is_there_and_others_replace_it(base, name):
    wraps = foveate.METHODS[name].wraps
    added = foveate.policy(f"theirs+{name}:budget=50")
    assert added.score == (wrapping(name) if wraps else alone_at_50(name).score)


def test_the_papers_that_wrap_a_score_are_these():
    wraps = {name for name, method in foveate.METHODS.items() if method.wraps}
    assert {"mixkv", "david", "lookm"} < wraps
    assert not {"prefixkv", "csp"} & wraps


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
        ("david.score", "score", wrapping("david")),
        ("lookm.score", "score", wrapping("lookm")),
        ("mixkv.score", "score", wrapping("mixkv")),
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


# ------------------------------------------------------------------- the worked examples


@pytest.mark.parametrize("spec", EXAMPLES)
def test_the_worked_examples_are_the_stages_that_the_page_lists(spec):
    assert foveate.policy(spec) == EXAMPLES[spec]
    assert foveate.policy(EXAMPLES[spec].spec) == EXAMPLES[spec]


def test_csp_and_prefixkv_add_up_in_either_order():
    assert foveate.policy("prefixkv+csp:budget=20%") == EXAMPLES["csp+prefixkv:budget=20%"]


def test_the_python_of_the_page_runs():
    given = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
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
