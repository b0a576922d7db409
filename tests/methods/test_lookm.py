"""LOOK-M ranks, keeps and merges as its equations, transcribed, and its code do.

Departures that show here: N + M is strict as in eq. 8, where the release keeps all text besides;
and averaged merging is eq. 10, where the release adds the wrong pairs, so that there only its sets
can be compared.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidBudget, InvalidParameter, MissingModality
from foveate.methods.lookm import TextPrior, importance, merged, nearest, with_text_prior
from foveate.methods.lookm import kept as kept_by
from foveate.methods.mixkv import MixDiversity
from foveate.ops.nearest import nearest_by_cosine
from foveate.stages.score import KeyNorm, Recency, WindowAttention
from tests.golden.vectors import papers
from tests.literal import lookm as literal

from .visual import assert_keeps, recorded, sets, visual

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
MERGED = {"rtol": 0, "atol": 1e-5, "check_dtype": False}

OF_EQUATIONS = {"lookm_paper_A_hh0.1_rr0.1_s0": 9, "lookm_paper_B_hh0.25_rr0.25_s2": 24}
OF_RELEASE, SIZE = "lookm_official_B_hh0.25_rr0.25_s2", 24

# what the release's variants are called -> how to ask for them
VARIANTS = {
    "h2o": {"text_prior": False, "merging": "none"},
    "pivot": {"text_prior": False, "merging": "pivotal", "sinks": 4},
    "avg": {"text_prior": False, "merging": "averaged", "sinks": 4, "similarity_filter": True},
    "weighted": {"text_prior": False, "merging": "weighted", "sinks": 4, "similarity_filter": True},
    "tp_pivot": {"merging": "pivotal"},
    "tp_avg": {"merging": "averaged", "similarity_filter": True},
    "tp_weighted": {"merging": "weighted", "similarity_filter": True},
}


def of_golden(file, size, **options):
    given, _ = papers(file)
    prompt = recorded([(given["q"], given["k"], given["v"])], given["image_mask"])
    return given, prompt, foveate.lookm(budget=2 * size, recent=size, **options)


def masked(masks):
    """Positions, head by head, of zeros and ones."""
    return [row.nonzero()[:, 0].tolist() for row in masks]


def assert_merged(kept, k, v):
    for head in range(len(k)):
        assert_close(kept.keys(0, head), k[head], **MERGED)
        assert_close(kept.values(0, head), v[head], **MERGED)


@pytest.mark.parametrize(("file", "size"), OF_EQUATIONS.items())
def test_the_scores_are_those_of_the_equations(file, size):
    given, prompt, policy = of_golden(file, size)
    (one,) = prompt.scored(policy)
    assert_close(one.raw[0], given["A_s"], **TOLERANCE)


@pytest.mark.parametrize(
    ("how", "name"), [("averaged", "avg"), ("pivotal", "pivot"), ("weighted", "weighted")]
)
@pytest.mark.parametrize(("file", "size"), OF_EQUATIONS.items())
def test_sets_and_merged_pairs_are_those_of_the_equations(file, size, how, name):
    given, prompt, policy = of_golden(file, size, merging=how)
    (kept,) = prompt.keeps(policy)
    assert sets(kept) == masked(given["keep"])
    assert_merged(kept, given[f"K_{name}"], given[f"V_{name}"])


def test_without_the_prior_the_scores_are_those_of_the_release():
    given, prompt, policy = of_golden(OF_RELEASE, SIZE, text_prior=False)
    (one,) = prompt.scored(policy)
    assert_close(one.raw[0], given["hh_score"], **TOLERANCE)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_keeps_what_the_release_keeps_where_text_fits_the_budget(name):
    """In float32 and in float64: in float16 all the image scores of the release are equal."""
    given, prompt, policy = of_golden(OF_RELEASE, SIZE, **VARIANTS[name])
    (kept,) = prompt.keeps(policy)
    assert sets(kept) == masked(given[f"{name}.keep"])
    if f"{name}.keep_f64" in given:
        assert sets(kept) == masked(given[f"{name}.keep_f64"])


@pytest.mark.parametrize("name", [name for name in VARIANTS if "avg" not in name])
def test_every_variant_but_the_averaged_one_merges_as_the_release(name):
    given, prompt, policy = of_golden(OF_RELEASE, SIZE, **VARIANTS[name])
    (kept,) = prompt.keeps(policy)
    for suffix in ["", "_f64"] if f"{name}.K_f64" in given else [""]:
        assert_merged(kept, given[f"{name}.K{suffix}"], given[f"{name}.V{suffix}"])


@pytest.mark.parametrize("name", ["pivot", "tp_pivot"])
def test_the_nearest_kept_key_is_that_of_the_release(name):
    given, _, _ = of_golden(OF_RELEASE, SIZE)
    keep = given[f"{name}.keep"].bool()
    found = nearest_by_cosine(given["k"], keep[None])
    for head, kept in enumerate(masked(keep)):
        slots = given[f"{name}.nearest_kept_slot"][head].tolist()
        assert found.slot[0, head][~keep[head]].tolist() == [kept[slot] for slot in slots]
        assert_close(found.cosine[0, head][~keep[head]], given[f"{name}.cos"][head], **TOLERANCE)


@pytest.mark.parametrize("how", ["averaged", "pivotal", "weighted"])
def test_the_stages_do_what_the_equations_of_the_methods_file_say(how):
    given, size = visual((41,), h=3), 8
    ((q, k, v),) = given.layers
    causal = torch.ones(41, 41, dtype=torch.bool).tril()
    attention = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~causal, -torch.inf).softmax(-1)
    a_s = with_text_prior(importance(attention), given.vision[:, None].expand(1, 3, 41))
    is_kept = kept_by(a_s, size, size)
    target, cosine = nearest(k, is_kept)
    policy = foveate.lookm(budget=2 * size, recent=size, merging=how)
    (one,), (kept,) = given.scored(policy), given.keeps(policy)
    assert_close(one.raw, a_s, **TOLERANCE)
    assert sets(kept) == masked(is_kept[0])
    pairs = (merged(x, is_kept, target, cosine, how)[0] for x in (k, v))
    assert_merged(kept, *([x[head][is_kept[0, head]] for head in range(3)] for x in pairs))


# ------------------------------------------------------------------------------- random prompts


def maximum_over_the_group(q, k):
    group = q.shape[0] // k.shape[0]
    each = literal.importance(q, k.repeat_interleave(group, 0))
    return each.view(k.shape[0], group, -1).amax(1)


def literally(
    given,
    *,
    recent=None,
    share=0.5,
    text_prior=True,
    sinks=0,
    protect_text=False,
    importance=literal.importance,
):
    """The positions that a row keeps, by the literal."""

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        scores = importance(q, k)
        if text_prior:
            scores = literal.with_text_prior(scores, given.images[row])
        if protect_text:
            scores[:, ~torch.tensor(given.images[row])] = math.inf
        last = math.floor(share * tokens) if recent is None else recent
        return literal.kept(scores, tokens - last, last, sinks)

    return expected


def assert_merges(policy, given, how, similarity_filter=False):
    """Of the kept pairs, each head's and row's, whatever chose them."""
    for layer, kept in enumerate(given.keeps(policy)):
        for row in given.rows():
            _, k, v = given.alone(layer, row)
            positions = sets(kept, row, given.pads[row])
            assert all(len(head) == len(positions[0]) for head in positions)
            if len(positions[0]) == k.shape[1]:
                keys, values = k, v
            else:
                keys, values = literal.merge(k, v, positions, how, similarity_filter)
            for head in range(len(k)):
                assert_close(kept.keys(row, head), keys[head], **MERGED)
                assert_close(kept.values(row, head), values[head], **MERGED)


@pytest.mark.parametrize("layout", ["text", "image", "two images", "text last"])
@pytest.mark.parametrize("similarity_filter", [False, True])
@pytest.mark.parametrize("text_prior", [False, True])
@pytest.mark.parametrize("merging", ["averaged", "pivotal", "weighted"])
def test_every_merge_with_and_without_the_prior_is_that_of_the_literal(
    merging, text_prior, similarity_filter, layout
):
    given = visual([28], layout, g=2, seed=1)
    policy = foveate.lookm(
        budget=12, merging=merging, text_prior=text_prior, similarity_filter=similarity_filter
    )
    assert_keeps(policy, given, literally(given, text_prior=text_prior))
    assert_merges(policy, given, merging, similarity_filter)


@pytest.mark.parametrize("budget", [1, 2, 7, 0.2, 0.5, 27])
@pytest.mark.parametrize(("h", "g"), [(2, 1), (1, 2), (2, 3)])
def test_every_budget_is_spent_on_the_important_and_the_recent(h, g, budget):
    given = visual([28], h=h, g=g, depth=2, seed=2)
    policy = foveate.lookm(budget=budget)
    assert_keeps(policy, given, literally(given))
    assert_merges(policy, given, "pivotal")


@pytest.mark.parametrize("similarity_filter", [False, True])
@pytest.mark.parametrize("merging", ["averaged", "pivotal", "weighted"])
@pytest.mark.parametrize("lengths", [(32, 25), (30, 5, 13)])
def test_a_padded_row_is_ranked_and_merged_as_it_is_alone(lengths, merging, similarity_filter):
    given = visual(lengths, ["two images", "text last", "text"][: len(lengths)], g=2, seed=3)
    policy = foveate.lookm(budget=12, merging=merging, similarity_filter=similarity_filter)
    assert_keeps(policy, given, literally(given))
    assert_merges(policy, given, merging, similarity_filter)


@pytest.mark.parametrize("recent", [0, 3, 12, 0.0, 0.25])
def test_recent_tokens_are_a_number_or_a_share_of_the_budget(recent):
    given = visual([32, 24], seed=4)
    policy = foveate.lookm(budget=12, recent=recent)
    size = {"recent": recent} if isinstance(recent, int) else {"share": recent}
    assert_keeps(policy, given, literally(given, **size))


@pytest.mark.parametrize("text_prior", [False, True])
@pytest.mark.parametrize("sinks", [1, 4, 6])
def test_sinks_take_places_of_the_important(sinks, text_prior):
    given = visual([32, 24], seed=5)
    policy = foveate.lookm(budget=12, sinks=sinks, text_prior=text_prior)
    assert_keeps(policy, given, literally(given, sinks=sinks, text_prior=text_prior))


def test_a_kv_head_may_be_as_important_as_the_most_important_of_its_query_heads():
    given = visual([32, 24], g=3, seed=6)
    policy = foveate.lookm(budget=12, group="max")
    assert_keeps(policy, given, literally(given, importance=maximum_over_the_group))


@pytest.mark.parametrize("text_prior", [False, True])
def test_protected_text_is_kept_whole_and_images_get_the_rest(text_prior):
    given = visual([32, 24], ["text last", "two images"], g=2, seed=7)
    textual = [sum(not image for image in row) for row in given.images]
    assert max(textual) < 22
    policy = foveate.lookm(budget=24, recent=4, protect_text=True, text_prior=text_prior)
    expected = literally(given, recent=4, protect_text=True, text_prior=text_prior)
    assert_keeps(policy, given, expected)
    assert_merges(policy, given, "pivotal")


def test_a_budget_that_does_not_hold_the_protected_text_is_raised_to_it_or_refused():
    given = visual([32], "text last", seed=8)  # 20 tokens of text
    fits = foveate.lookm(budget=20, recent=4, protect_text=True)
    assert sets(given.keeps(fits)[0]) == [[*range(4), *range(16, 32)]] * 2
    with pytest.raises(
        InvalidBudget, match=r"keeps 19 of the 32 tokens of row 0, fewer than the 20"
    ):
        given.keeps(fits.but(budget=19), strict=True)
    for less in (19, 5, "1%"):
        assert sets(given.keeps(fits.but(budget=less))[0]) == sets(given.keeps(fits)[0])
    all_text = visual([32], "text", seed=8)
    with pytest.raises(InvalidBudget, match="fewer than the 32"):
        all_text.keeps(fits.but(budget=31), strict=True)
    assert sets(all_text.keeps(fits.but(budget=32))[0]) == [[*range(32)]] * 2


# ------------------------------------------------------------------------------------ properties


def test_with_the_prior_no_image_is_kept_before_a_text_token():
    given = visual([32], "two images", g=2, seed=9)
    (kept,) = given.keeps(foveate.lookm(budget=8, recent=2))
    text = [i for i in range(30) if not given.images[0][i]]
    assert len(text) > 6
    for head in sets(kept):
        assert set(head[:-2]) <= set(text)


@pytest.mark.parametrize(
    "score",
    [KeyNorm(), Recency(), WindowAttention(window=6), MixDiversity(of=KeyNorm(), window=6)],
    ids=["key_norm", "recency", "window_attention", "mix_diversity"],
)
def test_whatever_score_the_prior_wraps_no_image_ranks_before_a_text_token(score):
    """Scores below zero, too."""
    given = visual([32], "two images", seed=9)
    (one,) = given.scored(foveate.lookm(budget=20, recent=6).but(score=TextPrior(of=score)))
    text = ~torch.tensor(given.images[0])
    for head in one.raw[0, :, :-6]:
        assert float(head[text[:-6]].min()) >= float(head[~text[:-6]].max())


def test_without_prior_and_merging_it_is_h2o():
    given = visual([32, 24], g=2, depth=2, seed=10)
    lookm = foveate.lookm(budget=12, merging="none", text_prior=False)
    for ours, theirs in zip(given.keeps(lookm), given.keeps(foveate.h2o(budget=12)), strict=True):
        assert torch.equal(ours.mask, theirs.mask)
        assert torch.equal(ours.k, theirs.k)
        assert torch.equal(ours.v, theirs.v)


@pytest.mark.parametrize("merging", ["averaged", "pivotal", "weighted"])
@pytest.mark.parametrize("budget", [30, 31, 1.0, "100%"])
def test_a_budget_of_the_whole_prompt_changes_nothing(budget, merging):
    given = visual([30, 22], g=2, seed=11)
    (kept,) = given.keeps(foveate.lookm(budget=budget, merging=merging))
    ((_, k, v),) = given.layers
    assert kept.mask.sum(-1).tolist() == [[30, 30], [22, 22]]
    assert kept.k is k
    assert kept.v is v


@pytest.mark.parametrize("budget", [1, 5, 12, 29])
def test_averaged_merging_preserves_the_sum_over_all_tokens(budget):
    """Each kept pair stands for n + 1: itself and the n that merged into it."""
    given = visual([30, 24], g=2, seed=12)
    (kept,) = given.keeps(foveate.lookm(budget=budget, merging="averaged"))
    ((_, k, v),) = given.layers
    for row, pad in enumerate(given.pads):
        for head in range(2):
            mask, keys = kept.mask[row, head, pad:], k[row, head, pad:].double()
            unit = keys / keys.norm(dim=-1, keepdim=True)
            target = (unit[~mask] @ unit[mask].T).argmax(-1)
            size = 1 + target.bincount(minlength=int(mask.sum()))
            for pairs, x in ((kept.keys, k), (kept.values, v)):
                stands_for = (size[:, None] * pairs(row, head)).sum(0)
                assert_close(stands_for, x[row, head, pad:].sum(0), rtol=1e-5, atol=1e-5)


def test_it_asks_which_tokens_are_visual_only_if_it_makes_a_difference():
    given = visual([30], seed=13)
    for options in ({}, {"protect_text": True, "text_prior": False}):
        with pytest.raises(MissingModality):
            foveate.compress_tensors(foveate.lookm(budget=24, **options), given.layers)
    foveate.compress_tensors(foveate.lookm(budget=24, text_prior=False), given.layers)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"merging": "mean"}, "merging='mean'"),
        ({"recent": 1.0}, "recent=1.0"),
        ({"sinks": -1}, "sinks=-1"),
        ({"group": "sum"}, "group='sum'"),
    ],
)
def test_what_it_does_not_know_is_refused_by_value(arguments, text):
    with pytest.raises(InvalidParameter, match=text):
        foveate.lookm(budget=64, **arguments)
