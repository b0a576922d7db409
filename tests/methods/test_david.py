"""DAVID decouples the layers and keeps the tokens that its equations, transcribed, say.

No code was released: what is recorded is another transcription of the same equations.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidParameter, MissingModality
from foveate.methods.david import ModalityFusion
from foveate.stages.score import ColumnSums, KeyNorm
from tests.golden.vectors import papers
from tests.literal import david as literal
from tests.literal import lookm

from .visual import assert_keeps, recorded, sets, upto, visual

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
GOLDEN = ["david_paper_H4kv4_Br10_Bs20_rho1.0_s1", "david_paper_H8kv2_Br16_Bs16_rho2.0_s0"]


def of_golden(file, **options):
    """The prompt, and the policy that pools over all tokens as eq. 3 does and the record did."""
    given, settings = papers(file)
    layers = [tuple(given[f"{name}.{layer}"] for name in "qkv") for layer in range(8)]
    recent, selected = int(settings["B_r"]), int(settings["B_s"])
    policy = foveate.david(
        budget=recent + selected,
        recent=recent,
        rho=float(settings["rho"]),
        threshold=float(settings["theta_T"]),
        kernel=int(settings["kernel"]),
        pool_window=True,
        **options,
    )
    return given, recorded(layers, given["image_mask"]), policy, recent


def noted(scored, name):
    """A note of every layer, for the only row."""
    return [one.scores.notes[name].item() for one in scored]


@pytest.mark.parametrize("file", GOLDEN)
def test_the_scores_are_those_recorded_over_the_length_of_the_window(file):
    given, prompt, policy, recent = of_golden(file)
    for layer, one in enumerate(prompt.scored(policy)):
        expected = given[f"S_pooled.{layer}"][:, :-recent]
        assert_close(recent * one.raw[0, :, :-recent], expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("rule", "name"),
    [("delta_below", "delta_lt"), ("delta_above", "delta_gt"), ("theta_below", "theta_lt")],
)
@pytest.mark.parametrize("file", GOLDEN)
def test_rates_and_decoupled_layers_are_those_recorded(file, rule, name):
    given, prompt, policy, _ = of_golden(file, rule=rule)
    scored = prompt.scored(policy)
    assert_close(torch.tensor(noted(scored, "ncar")), given["theta"], **TOLERANCE)
    recorded_flags = given[f"decoupled_flag.{name}"].bool().tolist()
    assert noted(scored, "decoupled") == recorded_flags


@pytest.mark.parametrize("file", GOLDEN)
def test_without_the_division_of_eq_6_no_layer_is_decoupled_as_recorded(file):
    given, prompt, policy, _ = of_golden(file, normalised=False)
    scored = prompt.scored(policy)
    expected = given["theta_without_1_over_r"]
    assert_close(torch.tensor(noted(scored, "ncar")), expected, **TOLERANCE)
    flags = given["decoupled_flag.delta_lt_without_1_over_r"].bool().tolist()
    assert noted(scored, "decoupled") == flags == [False] * 8


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unified", {"rule": "never"}),
        ("decoupled_text", {"rule": "always"}),
        ("decoupled_alg", {"rule": "always", "split": "algorithm"}),
    ],
)
@pytest.mark.parametrize("file", GOLDEN)
def test_the_sets_are_those_recorded_with_ties_to_the_earlier(file, name, options):
    """Pooling makes plateaus, and the record took any of equal scores at the border."""
    given, prompt, policy, recent = of_golden(file, **options)
    image = prompt.images[0]
    for layer, kept in enumerate(prompt.keeps(policy)):
        for head, positions in enumerate(sets(kept)):
            row = given[f"S_pooled.{layer}"][head].tolist()
            before = len(row) - recent
            chosen, expected = given[f"{name}.kept.{layer}"][head].tolist(), []
            for kind in (True, False) if name != "unified" else (None,):
                own = [i for i in range(before) if kind is None or image[i] == kind]
                expected += upto({i: row[i] for i in own}, [i for i in chosen if i in own])
            assert positions == [*sorted(expected), *range(before, len(row))]


# ------------------------------------------------------------------------------- random prompts

RECENT = 6


# what is taken from the logits of visual tokens, layer by layer
SINKS = (0.6, 1.1, 2.6, 2.7)


def sinking(lengths, layout="two images", *, depth=4, **options):
    """Layers of which each later one attends less to visual tokens, the third much less."""
    made = visual(lengths, layout, depth=depth, **options)
    for sink, (q, k, _) in zip(SINKS, made.layers, strict=False):
        q[..., 0] = 8**0.5
        k[..., 0] = torch.where(made.vision[:, None], -sink, 0.0)
    return made


def literally(
    given,
    *,
    recent=RECENT,
    share=None,
    rule="delta_below",
    threshold=0.3,
    rho=1.0,
    split="text",
    normalised=True,
    kernel=5,
    pool_window=False,
):
    """The positions that a row keeps, and its layers' flags, by the literal."""

    def flags(row, window):
        if not any(given.images[row]):
            return [False] * len(given.layers)
        thetas = []
        for layer in range(len(given.layers)):
            q, k, _ = given.alone(layer, row)
            theta = literal.ncar(q, k, given.images[row], window)
            thetas.append(theta if normalised else theta * window)
        if rule in ("always", "never"):
            return [rule == "always"] * len(thetas)
        return literal.decoupled_flags(thetas, threshold, rule)

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        kept_last = recent if share is None else math.floor(share * tokens)
        window = max(1, kept_last)
        scores = literal.scores(q, k, window)
        if pool_window:
            pooled = literal.pooled(scores, kernel)
        else:  # the recent tokens are not candidates, and are not seen by the pooling either
            before = literal.pooled(scores[:, : k.shape[1] - kept_last], kernel)
            pooled = torch.cat([before, scores[:, k.shape[1] - kept_last :]], -1)
        return literal.kept(
            pooled,
            given.images[row],
            kept_last,
            tokens - kept_last,
            rho,
            flags(row, window)[layer],
            split,
        )

    expected.flags = flags
    return expected


OPTIONS = {
    "default": {},
    "delta below": {"threshold": 0.1},
    "delta above": {"rule": "delta_above"},
    "theta below": {"rule": "theta_below", "threshold": 0.6},
    "always": {"rule": "always"},
    "never": {"rule": "never"},
    "as Algorithm 1 divides": {"rule": "always", "rho": 2.0, "split": "algorithm"},
    "as Algorithm 1 divides evenly": {"rule": "always", "rho": 1.0, "split": "algorithm"},
    "text alone": {"rule": "always", "rho": 0.0},
    "half as much vision": {"rule": "always", "rho": 0.5},
    "twice as much vision": {"rule": "always", "rho": 2.0},
    "not normalised": {"normalised": False, "threshold": 0.1},
    "pooling reaches the window": {"pool_window": True, "threshold": 0.1},
    "narrow pooling": {"kernel": 3, "threshold": 0.1},
}


@pytest.mark.parametrize("layout", ["text", "image", "two images", "text last"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_that_of_the_literal(options, layout):
    given = sinking([30], layout, g=2, seed=1)
    policy = foveate.david(budget=15, recent=RECENT, **options)
    assert_keeps(policy, given, literally(given, **options))


@pytest.mark.parametrize("budget", [RECENT, 7, 11, 0.5, 27])
@pytest.mark.parametrize(("h", "g"), [(2, 1), (1, 2), (2, 3)])
def test_every_budget_is_divided_between_the_modalities(h, g, budget):
    given = sinking([28], h=h, g=g, seed=2)
    policy = foveate.david(budget=budget, recent=RECENT, threshold=0.1)
    assert_keeps(policy, given, literally(given, threshold=0.1))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", [(33, 25), (30, 5, 9)])
def test_a_padded_row_is_decoupled_as_it_is_alone(lengths, options):
    given = sinking(lengths, ["two images", "text last", "text"][: len(lengths)], g=2, seed=3)
    policy = foveate.david(budget=12, recent=RECENT, **options)
    assert_keeps(policy, given, literally(given, **options))


@pytest.mark.parametrize("name", ["delta below", "delta above", "theta below", "not normalised"])
def test_the_rows_of_a_batch_switch_at_layers_of_their_own(name):
    given = sinking([34, 28, 26], ["text last", "two images", "text"], seed=4)
    policy = foveate.david(budget=12, recent=RECENT, **OPTIONS[name])
    flags = literally(given, **OPTIONS[name]).flags
    ours = torch.stack([one.scores.notes["decoupled"] for one in given.scored(policy)], -1)
    assert ours.tolist() == [flags(row, RECENT) for row in given.rows()]


@pytest.mark.parametrize("name", ["delta below", "delta above", "theta below"])
@pytest.mark.parametrize("layout", ["two images", "text last"])
def test_in_the_prompts_of_these_tests_the_first_layer_is_decoupled_and_the_last_is_not(
    layout, name
):
    """Otherwise the tests above would compare less than their names say."""
    flags = literally(sinking([30], layout, g=2, seed=1), **OPTIONS[name]).flags(0, RECENT)
    assert flags[0]
    assert not flags[-1]


@pytest.mark.parametrize("budget", [17, 0.5, 2])
def test_recent_tokens_may_be_a_share_of_the_budget(budget):
    given = sinking([34, 29], seed=5)
    policy = foveate.david(budget=budget, recent=0.4, threshold=0.1)
    assert_keeps(policy, given, literally(given, share=0.4, threshold=0.1))


def maximum_over_the_group(q, k, r):
    group = q.shape[0] // k.shape[0]
    each = literal.scores(q, k.repeat_interleave(group, 0), r)
    return each.view(k.shape[0], group, -1).amax(1)


def test_the_query_heads_of_a_kv_head_may_count_with_their_maximum_but_not_in_the_rate():
    given = sinking([32], g=3, depth=3, seed=6)
    policy = foveate.david(budget=15, recent=RECENT, group="max", threshold=0.1)
    flags = literally(given, threshold=0.1).flags(0, RECENT)

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        scores = maximum_over_the_group(q, k, RECENT)
        pooled = torch.cat([literal.pooled(scores[:, :-RECENT]), scores[:, -RECENT:]], -1)
        return literal.kept(pooled, given.images[row], RECENT, 9, 1.0, flags[layer])

    assert_keeps(policy, given, expected)
    assert noted(given.scored(policy), "decoupled") == flags


# 20 tokens, of which 14 are candidates
FEW_VISUAL = [i in (3, 9) for i in range(20)]
FEW_TEXTUAL = [i not in (0, 7, 11) and i < 14 for i in range(20)]


@pytest.mark.parametrize("split", ["text", "algorithm"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("images", [FEW_VISUAL, FEW_TEXTUAL], ids=["few visual", "few textual"])
def test_what_a_modality_has_no_tokens_for_goes_to_the_other(images, rho, split):
    given = visual([20], seed=7)._replace(images=[images])
    options = {"rule": "always", "rho": rho, "split": split}
    policy = foveate.david(budget=14, recent=RECENT, **options)
    assert_keeps(policy, given, literally(given, **options))


def of_kinds(positions, images):
    """Visual and textual ones before the recent tokens."""
    before = [i for i in positions if i < len(images) - RECENT]
    return sum(images[i] for i in before), sum(not images[i] for i in before)


@pytest.mark.parametrize(
    ("images", "rho", "split", "expected"),
    [
        (FEW_VISUAL, 1.0, "text", (2, 6)),  # of 4 and 4
        (FEW_TEXTUAL, 1.0, "text", (5, 3)),
        (FEW_TEXTUAL, 0.0, "text", (5, 3)),  # of 0 and 8
        ([i % 2 == 0 for i in range(20)], 3.0, "text", (6, 2)),
        ([i % 2 == 0 for i in range(20)], 3.0, "algorithm", (2, 6)),
        ([i % 2 == 0 for i in range(20)], 0.3, "text", (1, 7)),  # of 8 * 0.3 / 1.3
    ],
)
def test_a_decoupled_layer_keeps_so_many_of_each_modality(images, rho, split, expected):
    given = visual([20], seed=7)._replace(images=[images])
    policy = foveate.david(budget=14, recent=RECENT, rule="always", rho=rho, split=split)
    (kept,) = given.keeps(policy)
    assert [of_kinds(head, images) for head in sets(kept)] == [expected] * 2


# ------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("group", ["mean", "max"])
@pytest.mark.parametrize("kernel", [1, 5, 7])
def test_without_decoupling_it_keeps_what_snapkv_with_maximum_pooling_keeps(kernel, group):
    given = sinking([40, 31], g=2, seed=8)
    shared = {"budget": 15, "kernel": kernel, "group": group}
    david = foveate.david(**shared, recent=RECENT, rule="never")
    snapkv = foveate.snapkv(**shared, window=RECENT, pool="max")
    for ours, theirs in zip(given.keeps(david), given.keeps(snapkv), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("rule", ["always", "delta_below", "delta_above", "theta_below"])
def test_a_prompt_without_images_is_never_decoupled(rule):
    given = visual([30, 22], "text", depth=3, seed=9)
    policy = foveate.david(budget=12, recent=RECENT, rule=rule, threshold=-1.0)
    for one in given.scored(policy):
        assert one.scores.notes["decoupled"].tolist() == [False, False]
        assert one.scores.notes["ncar"].tolist() == [0.0, 0.0]


def test_even_attention_has_a_rate_of_almost_one():
    """A query sees nothing behind itself, and the tokens before all queries get a little more."""
    q, k = torch.zeros(1, 2, 100, 8), torch.zeros(1, 2, 100, 8)
    image = torch.arange(100)[None] < 50
    (one,) = recorded([(q, k, k)], image[0]).scored(foveate.david(budget=20, recent=1))
    assert one.scores.notes["ncar"].item() == pytest.approx(1.0)
    (one,) = recorded([(q, k, k)], image[0]).scored(foveate.david(budget=20, recent=10))
    assert one.scores.notes["ncar"].item() == pytest.approx(
        sum(100 / (91 + i) for i in range(10)) / 10
    )


def test_without_the_division_of_eq_6_the_rate_is_a_sum_over_the_queries_that_a_row_has():
    given = sinking([30, 4], seed=9)
    policy = foveate.david(budget=12, recent=RECENT, normalised=False)
    for layer, one in enumerate(given.scored(policy)):
        for row, queries in enumerate([RECENT, 4]):
            q, k, _ = given.alone(layer, row)
            rate = literal.ncar(q, k, given.images[row], queries) * queries
            assert float(one.scores.notes["ncar"][row]) == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("window", [1, 4, 9])
def test_over_a_score_without_a_window_the_rate_is_that_of_the_last_queries(window):
    given = sinking([30, 23], seed=10)
    policy = foveate.david(budget=12, recent=RECENT).but(
        score=ModalityFusion(of=ColumnSums(), window=window, threshold=0.1)
    )
    flags = []
    for row in given.rows():
        rates = []
        for layer in range(4):
            q, k, _ = given.alone(layer, row)
            rates.append(literal.ncar(q, k, given.images[row], window))
        ours = [one.scores.notes["ncar"][row].item() for one in given.scored(policy)]
        assert ours == pytest.approx(rates, rel=1e-4)
        flags.append(literal.decoupled_flags(rates, 0.1))

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        return literal.kept(
            lookm.importance(q, k),
            given.images[row],
            RECENT,
            tokens - RECENT,
            1.0,
            flags[row][layer],
        )

    assert_keeps(policy, given, expected)


def test_its_selection_goes_by_its_score_and_both_ask_which_tokens_are_visual():
    policy = foveate.david(budget=12, recent=RECENT)
    given = visual([24], seed=11)
    with pytest.raises(InvalidParameter, match="modality_fusion"):
        given.keeps(policy.but(score=KeyNorm()))
    with pytest.raises(MissingModality):
        foveate.compress_tensors(policy, given.layers)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"recent": 0}, "recent=0"),
        ({"rho": -0.5}, "rho=-0.5"),
        ({"rho": math.inf}, "rho=inf"),
        ({"rule": "sometimes"}, "rule='sometimes'"),
        ({"split": "paper"}, "split='paper'"),
        ({"kernel": 4}, "kernel=4"),
    ],
)
def test_what_is_out_of_range_is_refused_by_value(arguments, text):
    with pytest.raises(InvalidParameter, match=text):
        foveate.david(budget=64, **arguments)
