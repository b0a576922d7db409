"""CSP scores as its code does, and draws on both lists as the transcription says.

Departures that show here: a budget is spent. The release rounds both lists' lengths down and stores
what stands in both twice, so it keeps fewer different tokens; ours are those and the next ones, or
with `combine="concat"` the doubles.
"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidParameter, MissingModality
from foveate.methods.csp import CrossSelfAttention, SoftmaxN
from foveate.policies.protocols import Softmax
from foveate.stages.score import HeadMean
from tests.golden.vectors import papers
from tests.literal import csp as literal
from tests.literal.attention import attention

from .visual import assert_keeps, recorded, sets, visual

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
GOLDEN = {
    "csp_official_A_hh0.1_rr0.1_cr0.5_b1_s0": 9,
    "csp_official_B_hh0.25_rr0.25_cr0.5_b1_s2": 24,
}

# how many places the release loses, as it rounds both lists down
ODD = dict(zip(GOLDEN, [1, 0], strict=True))

# how many tokens the release stores twice, head by head
DOUBLES = dict(zip(GOLDEN, [[0, 0, 0, 0], [8, 4, 4, 8]], strict=True))


def of_golden(file, **options):
    """The prompt, and the policy with the budget that the release keeps, doubles included."""
    given, settings = papers(file)
    prompt = recorded([(given["q"], given["k"], given["v"])], given["image_mask"])
    recent = int(prompt.columns * float(settings["recent_ratio"]))
    assert recent == GOLDEN[file]
    asked = {
        "budget": given["kept_indices_in_cache_order"].shape[1],
        "recent": recent,
        "cross_ratio": float(settings["cross_ratio"]),
        "n": float(settings["n"]),
        "bias": float(settings["kv_recent_bias"]),
    }
    return given, prompt, foveate.csp(**{**asked, **options})


def parts_of(prompt, policy):
    (one,) = prompt.scored(policy)
    return one.scores.parts["self"][0], one.scores.parts["cross"][0]


@pytest.mark.parametrize("file", GOLDEN)
def test_the_scores_are_those_of_the_release(file):
    given, prompt, policy = of_golden(file)
    before = given["self_score"].shape[1]
    own, cross = parts_of(prompt, policy)
    assert_close(own[:, :before], given["self_score"], **TOLERANCE)
    assert_close(cross[:, :before], given["cross_score"], **TOLERANCE)


@pytest.mark.parametrize("file", GOLDEN)
def test_the_scores_of_averaged_heads_are_those_of_the_paper(file):
    given, prompt, policy = of_golden(file, head_mean=True)
    before = given["paper.headmean_self"].shape[0]
    for name, part in zip(("self", "cross"), parts_of(prompt, policy), strict=True):
        for head in part:
            assert_close(head[:before], given[f"paper.headmean_{name}"], **TOLERANCE)


@pytest.mark.parametrize("file", GOLDEN)
def test_it_keeps_what_the_release_keeps_and_the_next_ones_in_place_of_doubles(file):
    given, prompt, policy = of_golden(file)
    (kept,) = prompt.keeps(policy)
    stored = given["kept_indices_in_cache_order"].tolist()
    for ours, theirs in zip(sets(kept), stored, strict=True):
        assert len(ours) == len(theirs)
        assert set(theirs) <= set(ours)
    assert [len(row) - len(set(row)) for row in stored] == DOUBLES[file]


@pytest.mark.parametrize("file", GOLDEN)
def test_joined_lists_hold_the_pairs_of_the_release_doubles_included(file):
    given, prompt, policy = of_golden(file, combine="concat")
    (kept,) = prompt.keeps(policy)
    stored = given["kept_indices_in_cache_order"]
    for head in range(stored.shape[0]):
        ours = torch.cat([kept.keys(0, head), kept.values(0, head)], dim=-1)
        both = torch.cat([given["k"][0, head], given["v"][0, head]], dim=-1)
        assert bag(ours) == bag(both[stored[head]])


def bag(pairs):
    """The pairs in whatever order."""
    return sorted(pairs.tolist())


def joined(own, cross, k_self, k_cross):
    """What the lists hold one after the other, without what nobody pays for."""
    found = []
    for a, b, lists in zip(own, cross, literal.lists(own, cross, k_self, k_cross), strict=True):
        found.append([i for i in lists[0] if a[i] > 0] + [i for i in lists[1] if b[i] > 0])
    return found


@pytest.mark.parametrize("head_mean", [False, True])
@pytest.mark.parametrize("layout", ["two images", "text last", "text"])
@pytest.mark.parametrize("cross_ratio", [0.0, 0.3, 1.0])
def test_joined_lists_hold_twice_what_both_name(layout, cross_ratio, head_mean):
    """Beside the recent tokens, each head's pairs are those of both lists, and of the union where
    the lists end.
    """
    given = visual([30, 24], layout, g=2, seed=14)
    policy = foveate.csp(
        budget=16, recent=6, cross_ratio=cross_ratio, head_mean=head_mean, combine="concat"
    )
    (kept,) = given.keeps(policy)
    (union,) = given.keeps(policy.but(combine="union"))
    assert torch.equal(kept.mask, union.mask)
    k_cross = round(100 * cross_ratio) * 10 // 100
    for row in range(2):
        q, k, v = given.alone(0, row)
        own, cross = literal.scores(q, k, given.images[row], 6, 6)
        if head_mean:
            own, cross = (literal.head_mean(x).expand_as(x) for x in (own, cross))
        for head, listed in enumerate(joined(own, cross, 10 - k_cross, k_cross)):
            both = torch.cat([k[head], v[head]], dim=-1)
            held = bag(torch.cat([kept.keys(row, head), kept.values(row, head)], dim=-1))
            length = k.shape[1]
            for i in [*listed, *range(length - 6, length)]:
                held.remove(both[i].tolist())
            rest = set(sets(union, row, given.columns - length)[head]) - {*listed}
            assert all(one in bag(both[sorted(rest)]) for one in held)
            assert len(held) == 10 - len(listed)


@pytest.mark.parametrize("head_mean", [False, True])
@pytest.mark.parametrize("more", [0, 1, 7])
@pytest.mark.parametrize("file", GOLDEN)
def test_of_recorded_prompts_it_keeps_the_filled_union(file, more, head_mean):
    _, prompt, policy = of_golden(file, head_mean=head_mean)
    recent, budget = GOLDEN[file], int(policy.amount.value) + more
    assert_keeps(
        policy.but(budget=budget), prompt, literally(prompt, recent=recent, head_mean=head_mean)
    )


def released(file, **options):
    """The release as it is called: its budget is asked for, and its lists are not filled up."""
    given, prompt, policy = of_golden(file, fill=False, **options)
    settings = papers(file)[1]
    asked = GOLDEN[file] + int(prompt.columns * float(settings["hh_ratio"]))
    return given, policy.but(budget=asked), *prompt.keeps(policy.but(budget=asked))


@pytest.mark.parametrize("file", GOLDEN)
def test_without_filling_up_it_keeps_the_tokens_and_the_budget_of_the_release(file):
    given, policy, kept = released(file)
    stored = given["kept_indices_in_cache_order"]
    assert sets(kept) == [sorted(set(row)) for row in stored.tolist()]
    _, _, joined = released(file, combine="concat")
    assert joined.counts[0].tolist() == [stored.shape[1]] * 4
    assert int(policy.amount.value) - stored.shape[1] == ODD[file]
    for head in range(4):
        ours = torch.cat([joined.keys(0, head), joined.values(0, head)], dim=-1)
        both = torch.cat([given["k"][0, head], given["v"][0, head]], dim=-1)
        assert bag(ours) == bag(both[stored[head]])


@pytest.mark.parametrize("file", GOLDEN)
def test_the_intersection_of_recorded_prompts_keeps_what_the_equations_say(file):
    given, policy, kept = released(file, combine="and", head_mean=True)
    length = given["k"].shape[2]
    recent = list(range(length - GOLDEN[file], length))
    both = given["paper.M_and"].nonzero()[:, 0].tolist()
    assert sets(kept) == [both + recent] * 4
    assert int(kept.counts.max()) < int(policy.amount.value)  # what eq. 3 saves


# ------------------------------------------------------------------------------- random prompts


def grown_intersection(own, cross, k_self, k_cross):
    """What both lists name when both have grown, place by place, until it has k members; where a
    place adds one too many, the earlier stays. Where the lists run out, their union grows on.
    """
    wanted, chosen = k_self + k_cross, []
    for a, b in zip(own.tolist(), cross.tolist(), strict=True):
        one = [i for i in sorted(range(len(a)), key=lambda i: (-a[i], i)) if a[i] > 0]
        two = [i for i in sorted(range(len(b)), key=lambda i: (-b[i], i)) if b[i] > 0]
        members: set[int] = set()
        for both in (set.intersection, set.union):
            for step in range(len(a) + 1):
                grown = both(set(one[: k_self + step]), set(two[: k_cross + step]))
                fresh = sorted(grown - members)
                members |= set(fresh[: wanted - len(members)])
        chosen.append(sorted(members))
    return chosen


def filled(chosen, wanted, before):
    """The earliest of what nobody paid for, if both lists run out."""
    rest = [i for i in range(before) if i not in chosen]
    return sorted([*chosen, *rest[: wanted - len(chosen)]])


def literally(
    given,
    *,
    recent=None,
    window=None,
    share=None,
    n=1,
    cross_ratio=0.5,
    combine="union",
    head_mean=False,
    scores=literal.scores,
):
    """The positions that a row keeps, by the literal; ``window`` queries vote, as many as are kept
    if that is not said.
    """
    grow = literal.filled_union if combine == "union" else grown_intersection

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        kept = recent if share is None else math.floor(share * tokens)
        length, heads = k.shape[1], k.shape[0]
        voting = min(length, max(1, kept if window is None else window))
        own, cross = scores(q, k, given.images[row], voting, kept, n=n)
        if head_mean:
            own, cross = literal.head_mean(own), literal.head_mean(cross)
        free = tokens - kept
        k_cross = math.floor(free * round(10 * cross_ratio) / 10)
        last = list(range(length - kept, length))
        found = [
            filled(row, free, length - kept) + last
            for row in grow(own, cross, free - k_cross, k_cross)
        ]
        return found * heads if head_mean else found

    return expected


LAYOUTS = ["text", "image", "two images", "text last"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("h", "g"), [(2, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("n", [0.0, 1.0, 3.5])
def test_scores_are_the_softmax_n_by_the_modalities_of_query_and_key(n, h, g, layout):
    given = visual([28], layout, h=h, g=g, seed=3 * h + g)
    q, k, _ = given.alone(0, 0)
    parts = parts_of(given, foveate.csp(budget=14, recent=6, n=n))
    expected = literal.scores(q, k, given.images[0], 6, 0, n=n)
    for ours, theirs in zip(parts, expected, strict=True):
        assert_close(ours, theirs, **TOLERANCE)


OPTIONS = {
    "default": {},
    "softmax": {"n": 0.0},
    "softmax-3.5": {"n": 3.5},
    "all self": {"cross_ratio": 0.0},
    "three tenths cross": {"cross_ratio": 0.3},
    "all cross": {"cross_ratio": 1.0},
    "averaged heads": {"head_mean": True},
    "and": {"combine": "and"},
    "and, all self": {"combine": "and", "cross_ratio": 0.0},
    "and, three tenths cross": {"combine": "and", "cross_ratio": 0.3},
    "and, averaged heads": {"combine": "and", "head_mean": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_that_of_the_literal(options, layout):
    given = visual([30], layout, g=2, seed=2)
    policy = foveate.csp(budget=15, recent=6, **options)
    assert_keeps(policy, given, literally(given, recent=6, **options))


def unfilled(given, combine, cross_ratio, recent, head_mean):
    """Eqs. 2 to 4: what is on both lists, or on one, and the recent tokens."""
    join = literal.intersection if combine == "and" else literal.union

    def expected(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        length = k.shape[1]
        both = literal.scores(q, k, given.images[row], min(length, recent), recent)
        if head_mean:
            both = tuple(literal.head_mean(x).expand_as(x) for x in both)
        free, share = tokens - recent, Fraction(str(cross_ratio))
        lists = literal.lists(*both, math.floor(free * (1 - share)), math.floor(free * share))
        return [row + list(range(length - recent, length)) for row in join(lists)]

    return expected


@pytest.mark.parametrize("combine", ["union", "and"])
@pytest.mark.parametrize("cross_ratio", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("head_mean", [False, True])
def test_lists_that_are_not_filled_up_are_those_of_the_equations(head_mean, cross_ratio, combine):
    given = visual([33, 25, 30], ["two images", "text last", "text"], g=2, seed=15)
    policy = foveate.csp(
        budget=15,
        recent=6,
        cross_ratio=cross_ratio,
        combine=combine,
        fill=False,
        head_mean=head_mean,
    )
    assert_keeps(policy, given, unfilled(given, combine, cross_ratio, 6, head_mean))


@pytest.mark.parametrize("cross_ratio", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("budget", [9, 12, 15, 18])
def test_joined_lists_of_any_length_are_found_again_by_what_copies_the_doubles(budget, cross_ratio):
    given = visual([40], g=2, seed=16)
    policy = foveate.csp(
        budget=budget, recent=6, cross_ratio=cross_ratio, combine="concat", fill=False
    )
    (kept,) = given.keeps(policy)
    q, k, v = given.alone(0, 0)
    free, share = budget - 6, Fraction(str(cross_ratio))
    own, cross = literal.scores(q, k, given.images[0], 6, 6)
    lists = literal.lists(own, cross, math.floor(free * (1 - share)), math.floor(free * share))
    for head, (one, other) in enumerate(lists):
        both = torch.cat([k[head], v[head]], dim=-1)
        ours = torch.cat([kept.keys(0, head), kept.values(0, head)], dim=-1)
        assert bag(ours) == bag(both[[*one, *other, *range(34, 40)]])


def test_an_intersection_without_recent_tokens_may_be_empty_and_is_refused():
    with pytest.raises(InvalidParameter, match="keeps no recent token"):
        foveate.csp(budget=12, recent=4, bias=0.0, combine="and", fill=False)


@pytest.mark.parametrize("combine", ["union", "and"])
@pytest.mark.parametrize("budget", [6, 7, 8, 0.5, 27])
@pytest.mark.parametrize(("h", "g"), [(2, 1), (1, 2)])
def test_every_budget_is_drawn_from_both_lists(h, g, budget, combine):
    given = visual([28], h=h, g=g, depth=2, seed=4)
    policy = foveate.csp(budget=budget, recent=6, combine=combine)
    assert_keeps(policy, given, literally(given, recent=6, combine=combine))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", [(33, 25), (30, 5, 9)])
def test_a_padded_row_is_pruned_as_it_is_alone(lengths, options):
    layouts = ["two images", "text last", "text"][: len(lengths)]
    given = visual(lengths, layouts, g=2, seed=5)
    policy = foveate.csp(budget=12, recent=6, **options)
    assert_keeps(policy, given, literally(given, recent=6, **options))


@pytest.mark.parametrize(("bias", "kept"), [(0.0, 0), (0.5, 4), (1.5, 12)])
def test_bias_times_as_many_tokens_are_kept_as_vote(bias, kept):
    given = visual([32], seed=6)
    policy = foveate.csp(budget=17, recent=8, bias=bias)
    assert_keeps(policy, given, literally(given, window=8, recent=kept))


@pytest.mark.parametrize("budget", [17, 0.5, 2, 3])
def test_recent_tokens_may_be_a_share_of_the_budget(budget):
    given = visual([34, 29], seed=7)
    policy = foveate.csp(budget=budget, recent=0.4)
    assert_keeps(policy, given, literally(given, share=0.4))


@pytest.mark.parametrize(
    ("recent", "bias", "kept"), [(100, 0.29, 29), (50, 0.58, 29), (0.7, 0.1, 7), (0.55, 0.2, 11)]
)
def test_the_product_of_recent_and_bias_is_exact(recent, bias, kept):
    """Of a budget of 100."""
    policy = foveate.csp(budget=100, recent=recent, bias=bias)
    q = torch.zeros(1, 1, 200, 1)
    (one,) = recorded([(q, q, q)], torch.zeros(200)).scored(policy)
    assert one.protected.tolist() == [[kept]]


def maximum_over_the_group(q, k, is_image, window, recent, n):
    group = q.shape[0] // k.shape[0]
    each = literal.scores(q, k.repeat_interleave(group, 0), is_image, window, recent, n=n)
    return [x.view(k.shape[0], group, -1).amax(1) for x in each]


def test_the_query_heads_of_a_kv_head_may_count_with_their_maximum():
    given = visual([32, 27], g=3, seed=8)
    policy = foveate.csp(budget=15, recent=6, group="max")
    assert_keeps(policy, given, literally(given, recent=6, scores=maximum_over_the_group))


def test_softmax_n_while_decoding_is_an_option_of_the_policy():
    assert foveate.csp(budget=16).attend == Softmax()
    assert foveate.csp(budget=16, decode_n=0.3).attend == SoftmaxN(n=0.3)


# ------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_parts_together_are_all_that_the_window_pays_and_for_small_n_a_softmax(layout):
    given = visual([28], layout, g=2, seed=9)
    q, k, _ = given.alone(0, 0)
    paid = attention(q, k)[:, -6:].sum(1).view(2, 2, -1).mean(1)
    off = []
    for n in (0.1, 0.01, 0.001, 0.0):
        (one,) = given.scored(foveate.csp(budget=14, recent=6, n=n))
        assert_close(one.raw, one.scores.parts["self"] + one.scores.parts["cross"])
        off.append(float((one.raw[0] - paid).abs().max()))
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-6 < off[-2]
    assert [off[0] / off[1], off[1] / off[2]] == pytest.approx([10, 10], 0.2)


@pytest.mark.parametrize("combine", ["union", "and"])
@pytest.mark.parametrize("cross_ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("layout", ["text", "image"])
def test_of_one_modality_the_whole_budget_goes_to_the_self_list(layout, cross_ratio, combine):
    given = visual([30], layout, seed=10)
    policy = foveate.csp(budget=14, recent=6, cross_ratio=cross_ratio, combine=combine)
    (kept,) = given.keeps(policy)
    own, cross = parts_of(given, policy)
    assert not bool(cross.any())
    for head, positions in enumerate(sets(kept)):
        best = own[head, :24].topk(8).indices.tolist()
        assert positions == [*sorted(best), *range(24, 30)]


def test_a_window_of_text_lists_text_as_self_and_images_as_cross():
    given = visual([30], "text last", seed=11)
    own, cross = parts_of(given, foveate.csp(budget=14, recent=6))
    image = torch.tensor(given.images[0])
    assert bool((own[:, image] == 0).all())
    assert bool((own[:, ~image] > 0).all())
    assert bool((cross[:, image] > 0).all())
    assert bool((cross[:, ~image] == 0).all())


def test_where_no_list_meets_the_other_and_is_the_union():
    given = visual([30], "text last", seed=11)
    policy = foveate.csp(budget=14, recent=6)
    assert sets(given.keeps(policy)[0]) == sets(given.keeps(policy.but(combine="and"))[0])


def test_tokens_that_nobody_pays_for_fill_the_budget_from_the_first_on():
    given = visual([20], seed=12)
    (one,) = given.scored(foveate.csp(budget=12, recent=4))
    own = torch.zeros_like(one.raw)
    own[..., [7, 9]] = 1.0
    parts = {"self": own, "cross": torch.zeros_like(own)}
    one = replace(one, scores=one.scores._replace(parts=parts))
    policy = foveate.csp(budget=12, recent=4)
    mask = policy.select(one, torch.full((1, 2), 12))
    assert mask[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 7, 9, 16, 17, 18, 19]


def test_the_score_works_without_this_selection_and_the_selection_not_without_the_score():
    given = visual([24], seed=13)
    policy = foveate.csp(budget=12, recent=4)
    assert policy.score == CrossSelfAttention(window=4)
    plain = policy.but(select=foveate.snapkv(budget=12, window=4).select)
    (kept,) = given.keeps(plain)
    q, k, _ = given.alone(0, 0)
    own, cross = literal.scores(q, k, given.images[0], 4, 4)
    expected = [[*sorted(x.topk(8).indices.tolist()), *range(20, 24)] for x in own + cross]
    assert sets(kept) == expected
    with pytest.raises(InvalidParameter, match="cross_self_attention"):
        given.keeps(policy.but(score="key_norm"))


def test_it_asks_which_tokens_are_visual():
    (q, k, v), *_ = visual([24]).layers
    with pytest.raises(MissingModality):
        foveate.compress_tensors(foveate.csp(budget=12), [(q, k, v)])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"recent": 0}, "recent=0"),
        ({"recent": 8, "bias": -1.0}, "bias=-1.0"),
        ({"recent": 8, "bias": math.nan}, "bias=nan"),
        ({"recent": 8, "bias": math.inf}, "bias=inf"),
        ({"recent": 0.5, "bias": 2.0}, "bias=2.0"),
        ({"n": -1.0}, "n=-1.0"),
        ({"n": math.inf}, "n=inf"),
        ({"decode_n": -0.5}, "n=-0.5"),
        ({"cross_ratio": 1.1}, "cross_ratio=1.1"),
        ({"cross_ratio": -0.1}, "cross_ratio=-0.1"),
        ({"combine": "both"}, "combine='both'"),
    ],
)
def test_what_is_out_of_range_is_refused_by_value(arguments, text):
    with pytest.raises(InvalidParameter, match=text):
        foveate.csp(budget=64, **arguments)


def test_averaged_heads_are_the_mean_of_its_score():
    assert foveate.csp(budget=12, head_mean=True).score == HeadMean(of=CrossSelfAttention())
