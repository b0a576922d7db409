"""The transcriptions return what was recorded of the papers' code, as far as that has no bugs.

`*_official_*` files hold what the released code returned, `*_paper_*` files and tensors what an
earlier literal reading of the paper returned. Theirs is float32, hence the tolerances.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import csp, david, lookm, mixkv, prefixkv
from .attention import attention, top

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
MERGED = {"rtol": 0, "atol": 1e-5, "check_dtype": False}


def sets(positions):
    """[h, s] in any order, none twice."""
    rows = [sorted(row) for row in positions.tolist()]
    assert all(len(row) == len(set(row)) for row in rows)
    return rows


def masked(masks):
    """[h, t] of zeros and ones."""
    return [row.nonzero()[:, 0].tolist() for row in masks]


def settled(scores, chosen):
    """``chosen`` of ``scores``, where equal scores at its border, of which torch's topk takes any,
    go to the earlier positions."""
    border = min(scores[i] for i in chosen)
    above = [i for i in scores if scores[i] > border]
    tied = sorted(i for i in scores if scores[i] == border)
    assert set(above) <= set(chosen) <= set(above + tied)
    return above + tied[: len(chosen) - len(above)]


def seeded(*shape):
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ------------------------------------------------------------------------------------- in common


def test_attention_is_the_causal_softmax_of_scaled_products():
    q, k = seeded(4, 7, 8), seeded(2, 7, 8)
    logits = q @ k.repeat_interleave(2, 0).transpose(1, 2) / math.sqrt(8)
    logits = logits.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    assert_close(attention(q, k), logits.softmax(-1))


def test_of_equal_scores_the_earlier_is_on_top():
    assert top([1.0, 3.0, 2.0, 3.0, 2.0], 3) == [1, 3, 2]


@pytest.mark.parametrize(
    "per_head",
    [
        lambda q, k: lookm.importance(q, k),
        lambda q, k: david.scores(q, k, 3),
        lambda q, k: csp.scores(q, k, [False] * 4 + [True] * 5, 4, 2)[0],
        lambda q, k: csp.scores(q, k, [False] * 4 + [True] * 5, 4, 2)[1],
        lambda q, k: mixkv.scores(q, k, k, 3, mix="importance", intrinsic=None),
    ],
    ids=["lookm", "david", "csp self", "csp cross", "mixkv"],
)
def test_a_kv_head_scores_the_mean_of_its_query_heads(per_head):
    q, k = seeded(6, 9, 8), seeded(2, 9, 8)
    each = per_head(q, k.repeat_interleave(3, 0))
    assert_close(per_head(q, k), each.view(2, 3, -1).mean(1))


# ----------------------------------------------------------------------------------------- MixKV

MIXKV = ["mixkv_official_H4kv4_W8_B32_s0", "mixkv_official_H8kv2_W8_B32_s0"]

# what is recorded as -> how to ask for it
OF_THE_RELEASE = {
    "attn": {"mix": "importance", "intrinsic": None},
    "vnorm": {"mix": "importance"},
    "keydiff": {"mix": "diversity"},
    "headwisemixkv": {},
}
OF_THE_PAPER = {
    "paperA_full_domain": {"normalise_over": "all"},
    "paperB_prefix_domain": {"normalise_over": "prefix"},
}


def mixkv_of(file, **options):
    given, settings = papers(file)
    window, budget = int(settings["window"]), int(settings["budget_incl_window"])
    q, k, v = (given[name][0] for name in "qkv")
    scores = mixkv.scores(q, k, v, window, kernel=int(settings["kernel"]), **options)
    return given, scores, mixkv.kept(scores, k.shape[1], window, budget)


@pytest.mark.parametrize("file", MIXKV)
def test_redundancy_is_what_the_release_measures_in_linear_time(file):
    given, _ = papers(file)
    assert_close(mixkv.redundancy(given["k"][0]), given["redundancy_online"], **TOLERANCE)


@pytest.mark.parametrize("name", OF_THE_RELEASE)
@pytest.mark.parametrize("file", MIXKV)
def test_mixkv_scores_and_keeps_what_the_release_does(file, name):
    given, scores, kept = mixkv_of(file, **OF_THE_RELEASE[name])
    assert_close(scores, given[f"{name}.score"], **TOLERANCE)
    assert kept == sets(given[f"{name}.kept_in_cache_order"])


@pytest.mark.parametrize("file", MIXKV)
def test_the_plain_sum_is_a_multiple_of_the_three_thirds_of_the_release(file):
    given, scores, kept = mixkv_of(file, mix="sum")
    assert_close(0.33 * scores, given["mixkv.score"], **TOLERANCE)
    assert kept == sets(given["mixkv.kept_in_cache_order"])


@pytest.mark.parametrize("name", OF_THE_PAPER)
@pytest.mark.parametrize("file", MIXKV)
def test_mixkv_scores_and_keeps_what_the_paper_prints(file, name):
    given, scores, kept = mixkv_of(
        file, pooled=False, diversity_scale="importance", **OF_THE_PAPER[name]
    )
    assert_close(scores, given[f"{name}.score"], **TOLERANCE)
    window = scores.shape[1]
    before = [[i for i in row if i < window] for row in kept]
    assert before == sets(given[f"{name}.kept_sorted"])


def test_mixkv_keeps_what_the_release_does_with_a_table_of_redundancies():
    given, _ = papers(MIXKV[0])
    table = given["offline_headwise.redundancy"].tolist()
    _, _, kept = mixkv_of(MIXKV[0], table=table)
    assert kept == sets(given["offline_headwise.kept_in_cache_order"])


def test_keys_that_point_apart_leave_importance_alone():
    q, v = seeded(1, 6, 4), seeded(1, 6, 4)
    k = torch.eye(4, dtype=torch.float64)[None, [0, 0, 0, 1, 1, 1]]
    k = k * torch.tensor([1, -1, 2, 1, -1, -1], dtype=torch.float64)[:, None]
    assert mixkv.redundancy(k).item() < 0
    assert_close(mixkv.scores(q, k, v, 2), mixkv.scores(q, k, v, 2, mix="importance"))


def test_among_key_norms_the_smallest_are_the_important_ones():
    q, k = torch.zeros(1, 6, 4), seeded(1, 6, 4)
    scores = mixkv.scores(q, k, k, 2, mix="importance", intrinsic="key", pooled=False)
    # queries of zero attend to all keys alike
    assert scores[0].argsort().tolist() == (-k[0, :4].norm(dim=-1)).argsort().tolist()


# -------------------------------------------------------------------------------------- PrefixKV

PREFIXKV = ["prefixkv_official_H4kv4_r0.5_st1_s1", "prefixkv_official_H8kv2_r0.5_st1_s1"]
LAYERS = range(6)


def prefixkv_of(file):
    given, settings = papers(file)
    importances = [
        prefixkv.importance(given[f"q.{layer}"][0], given[f"k.{layer}"][0]) for layer in LAYERS
    ]
    return given, settings, importances


@pytest.mark.parametrize("file", PREFIXKV)
def test_prefixkv_importance_is_that_of_the_release(file):
    given, _, importances = prefixkv_of(file)
    assert_close(torch.stack(importances), given["score_sum"], **TOLERANCE)


@pytest.mark.parametrize("file", PREFIXKV)
def test_the_search_ends_where_that_of_the_release_ends(file):
    given, settings, importances = prefixkv_of(file)
    tokens = len(importances[0])
    protected = int(settings["start_size"]) + int(settings["protect_size"])
    forgotten = float(settings["forget_ratio"]) * tokens * len(LAYERS)
    # The release counts what a layer forgets: its tokens, less the prefix, less the protected ones
    # (although the curve has those in it, too). It stops less than 5 tokens from its aim.
    total = (tokens - protected) * len(LAYERS) - int(forgotten)
    p, counts = prefixkv.search([prefixkv.curve(x) for x in importances], total, tolerance=4)
    assert p == given["p"].item()
    raw = [tokens - protected - count for count in counts]
    assert raw == given["forget_raw"].tolist()
    # and then scales to its aim, rounding down, so that a few tokens more than asked for are kept
    forget = [int(x * forgotten / sum(raw)) for x in raw]
    assert forget == given["forget"].tolist()
    assert [tokens - x for x in forget] == given["kept_len"].tolist()


@pytest.mark.parametrize("file", PREFIXKV)
def test_prefixkv_keeps_the_tokens_that_the_release_keeps(file):
    given, _, importances = prefixkv_of(file)
    for layer, count in zip(LAYERS, given["kept_len"].tolist(), strict=True):
        assert prefixkv.kept(importances[layer], count) == given[f"kept.{layer}"].tolist()


@pytest.mark.parametrize("file", PREFIXKV)
def test_decoding_drops_what_the_release_drops_when_it_does(file):
    given, _, _ = prefixkv_of(file)
    lengths = given["decode.lens"]
    tokens, steps = given["image_mask"].shape[0], lengths.shape[0] - 1
    for layer in LAYERS:
        kept = given[f"kept.{layer}"].tolist()
        assert prefixkv.decode_slot(len(kept)) == given["decode.fixed_drop_index"][layer].item()
        assert prefixkv.decode_lengths(tokens, len(kept), steps) == lengths[:, layer].tolist()
        positions = prefixkv.decode_positions(tokens, kept, steps)
        assert positions == given[f"decode.final_positions.{layer}"].tolist()


def test_where_the_ratio_meets_a_whole_token_rounding_delays_the_drop_of_the_release():
    # 52 of 96 tokens at 120: 65 are due, and the release has 66 (layer 5 of the second file)
    assert prefixkv.decode_lengths(96, 52, 24)[-1] == 66
    assert prefixkv.decode_lengths(96, 52, 24, exact=True)[-1] == 65


@pytest.mark.parametrize("by", ["position", "feature"])
@pytest.mark.parametrize("file", PREFIXKV)
def test_prefixkv_merges_as_the_paper_says(file, by):
    given, _, _ = prefixkv_of(file)
    for layer in LAYERS:
        keys, kept = given[f"k.{layer}"][0], given[f"kept.{layer}"].tolist()
        for name in "kv":
            merged = prefixkv.merge(given[f"{name}.{layer}"][0], kept, by, keys)
            expected = given[f"paper_merge_{by}.{name.upper()}.{layer}"]
            assert_close(merged, expected, **MERGED)


def test_the_search_finds_the_budget_where_a_p_meets_it_and_ends_where_none_does():
    steep, flat = (prefixkv.curve(torch.tensor(x)) for x in ([8.0, 1, 1, 0], [4.0, 3, 2, 1]))
    p, counts = prefixkv.search([steep, flat], 4)
    assert counts == [1, 3]
    assert 0.7 < p <= 0.8
    even = prefixkv.curve(torch.ones(4))
    p, counts = prefixkv.search([even, even], 5)  # equal layers: even totals only
    assert sum(counts) in (4, 6)
    assert p == pytest.approx(0.5)


def test_the_gini_coefficient_is_zero_of_equals_and_grows_with_concentration():
    assert prefixkv.gini(torch.ones(10)) == pytest.approx(0)
    # one of n has everything: 1 - 1/n
    assert prefixkv.gini(torch.tensor([0.0, 0.0, 5.0, 0.0])) == pytest.approx(0.75)
    assert prefixkv.area(torch.tensor([0.0, 0.0, 5.0, 0.0])) == pytest.approx(0.375)


def test_a_short_cache_drops_from_its_middle():
    assert [prefixkv.decode_slot(n) for n in (27, 26, 25, 9)] == [2, 1, 12, 4]


# ------------------------------------------------------------------------------------------- CSP

CSP = ["csp_official_A_hh0.1_rr0.1_cr0.5_b1_s0", "csp_official_B_hh0.25_rr0.25_cr0.5_b1_s2"]


def csp_of(file):
    given, settings = papers(file)
    tokens = given["k"].shape[2]
    observed = int(tokens * float(settings["recent_ratio"]))
    recent = int(observed * float(settings["kv_recent_bias"]))
    own, cross = csp.scores(
        given["q"][0],
        given["k"][0],
        given["image_mask"].bool().tolist(),
        observed,
        recent,
        n=float(settings["n"]),
    )
    budget = int(tokens * float(settings["hh_ratio"])) + observed - recent
    share = float(settings["cross_ratio"])
    return given, own, cross, budget, share, recent


@pytest.mark.parametrize("file", CSP)
def test_csp_scores_are_those_of_the_release(file):
    given, own, cross, *_ = csp_of(file)
    assert_close(own, given["self_score"], **TOLERANCE)
    assert_close(cross, given["cross_score"], **TOLERANCE)
    assert_close(csp.head_mean(own)[0], given["paper.headmean_self"], **TOLERANCE)
    assert_close(csp.head_mean(cross)[0], given["paper.headmean_cross"], **TOLERANCE)


@pytest.mark.parametrize("file", CSP)
def test_csp_lists_are_those_of_the_release(file):
    given, own, cross, budget, share, recent = csp_of(file)
    # The release rounds down twice, so that of an odd budget one token is kept nowhere: with 9 and
    # a half, 4 and 4.
    k_self, k_cross = int(budget * (1 - share)), int(budget * share)
    found = csp.lists(own, cross, k_self, k_cross)
    assert [list(row[0]) for row in found] == given["self_indices"].tolist()
    assert [list(row[1]) for row in found] == given["cross_indices"].tolist()
    # the release stores what both lists name twice: as sets, the two are one
    last = list(range(own.shape[1], own.shape[1] + recent))
    stored = [sorted(set(row)) for row in given["kept_indices_in_cache_order"].tolist()]
    assert [row + last for row in csp.union(found)] == stored


@pytest.mark.parametrize("file", CSP)
def test_csp_masks_of_averaged_heads_are_those_of_the_paper(file):
    given, own, cross, budget, share, _ = csp_of(file)
    k_self, k_cross = int(budget * (1 - share)), int(budget * share)
    found = csp.lists(csp.head_mean(own), csp.head_mean(cross), k_self, k_cross)
    assert [sorted(found[0][0])] == masked(given["paper.M_self"][None])
    assert [sorted(found[0][1])] == masked(given["paper.M_cross"][None])
    assert csp.intersection(found) == masked(given["paper.M_and"][None])
    assert csp.union(found) == masked(given["paper.M_union"][None])


@pytest.mark.parametrize("file", CSP)
def test_the_filled_union_contains_the_union_and_spends_the_budget(file):
    _, own, cross, budget, share, _ = csp_of(file)
    k_cross = int(budget * share)
    k_self = budget - k_cross
    plain = csp.union(csp.lists(own, cross, k_self, k_cross))
    filled = csp.filled_union(own, cross, k_self, k_cross)
    assert all(set(a) <= set(b) for a, b in zip(plain, filled, strict=True))
    assert [len(row) for row in filled] == [budget] * len(filled)


def test_the_union_is_filled_by_the_next_of_both_lists():
    own = torch.tensor([[9.0, 8, 7, 6, 5, 4, 0, 0]])
    cross = torch.tensor([[9.0, 8, 0, 0, 1, 2, 3, 0]])
    # 0 and 1 are in both; then 2 and 6 come in at once
    assert csp.filled_union(own, cross, 2, 2) == [[0, 1, 2, 6]]
    # 0, 1, 2 and 0, 1 make 3; then 3 and 6 come in
    assert csp.filled_union(own, cross, 3, 2) == [[0, 1, 2, 3, 6]]
    # 0, 1 and 0 make 2; then 2 comes in, and 1 is there already
    assert csp.filled_union(own, cross, 2, 1) == [[0, 1, 2]]


def test_of_two_that_come_in_for_one_place_the_earlier_stays():
    own = torch.tensor([[9.0, 8, 0, 0, 7, 0]])
    cross = torch.tensor([[9.0, 0, 7, 0, 0, 8]])
    # 0, 1 and 0 make 2; 4 and 5 come in for one place
    assert csp.filled_union(own, cross, 2, 1) == [[0, 1, 4]]


def test_what_scores_zero_in_a_list_does_not_enter_by_it():
    own = torch.tensor([[3.0, 2, 0, 0, 1]])
    cross = torch.tensor([[0.0, 0, 0, 0, 0]])
    assert csp.filled_union(own, cross, 1, 2) == [[0, 1, 4]]
    assert csp.filled_union(own, cross, 2, 3) == [[0, 1, 4]]


@pytest.mark.parametrize("n", [0, 1, 2.5])
def test_softmax_n_adds_n_to_the_denominator(n):
    logits = [0.5, -3.0, 2.0]
    whole = n + sum(math.exp(x) for x in logits)
    assert csp.softmax_n(logits, n) == pytest.approx([math.exp(x) / whole for x in logits])


# ----------------------------------------------------------------------------------------- DAVID

DAVID = ["david_paper_H4kv4_Br10_Bs20_rho1.0_s1", "david_paper_H8kv2_Br16_Bs16_rho2.0_s0"]


def david_of(file):
    given, settings = papers(file)
    recent, selected = int(settings["B_r"]), int(settings["B_s"])
    return given, settings, given["image_mask"].bool().tolist(), recent, selected


def david_layers(given):
    for layer in range(8):
        yield layer, given[f"q.{layer}"][0], given[f"k.{layer}"][0]


@pytest.mark.parametrize("file", DAVID)
def test_david_scores_are_pooled_over_all_keys_the_recent_ones_too(file):
    given, settings, _, recent, _ = david_of(file)
    for layer, q, k in david_layers(given):
        scores = david.scores(q, k, recent)
        assert_close(scores, given[f"S.{layer}"], **TOLERANCE)
        pooled = david.pooled(scores, int(settings["kernel"]))
        assert_close(pooled, given[f"S_pooled.{layer}"], **TOLERANCE)


@pytest.mark.parametrize("file", DAVID)
def test_ncar_and_the_layers_to_decouple_are_those_recorded(file):
    given, settings, is_image, recent, _ = david_of(file)
    thetas = [david.ncar(q, k, is_image, recent) for _, q, k in david_layers(given)]
    assert_close(torch.tensor(thetas), given["theta"], **TOLERANCE)
    without = [theta * recent for theta in thetas]  # line 16 of Algorithm 1
    assert_close(torch.tensor(without), given["theta_without_1_over_r"], **TOLERANCE)
    threshold = float(settings["theta_T"])

    def recorded(name):
        return [bool(x) for x in given[f"decoupled_flag.{name}"]]

    assert david.decoupled_flags(thetas, threshold) == recorded("delta_lt")
    assert david.decoupled_flags(thetas, threshold, "delta_above") == recorded("delta_gt")
    assert david.decoupled_flags(thetas, threshold, "theta_below") == recorded("theta_lt")
    flags = david.decoupled_flags(without, threshold)
    assert flags == recorded("delta_lt_without_1_over_r")
    assert not any(flags)


@pytest.mark.parametrize(
    ("name", "decoupled", "split"),
    [
        ("unified", False, "text"),
        ("decoupled_text", True, "text"),
        ("decoupled_alg", True, "algorithm"),
    ],
)
@pytest.mark.parametrize("file", DAVID)
def test_david_keeps_what_is_recorded_with_ties_to_the_earlier(file, name, decoupled, split):
    """Pooling makes plateaus, and the record took any of equal scores at the border."""
    given, settings, is_image, recent, selected = david_of(file)
    rho, kernel = float(settings["rho"]), int(settings["kernel"])
    for layer, q, k in david_layers(given):
        pooled = david.pooled(david.scores(q, k, recent), kernel)
        kept = david.kept(pooled, is_image, recent, selected, rho, decoupled, split)
        recorded = sets(given[f"{name}.kept.{layer}"])
        for head, row in enumerate(given[f"S_pooled.{layer}"].tolist()):
            before = range(len(row) - recent)
            expected = []
            for modality in (True, False) if decoupled else (None,):
                own = [i for i in before if modality is None or is_image[i] == modality]
                chosen = [i for i in recorded[head] if i in own]
                expected += settled({i: row[i] for i in own}, chosen)
            assert kept[head] == sorted(expected) + list(range(len(row) - recent, len(row)))


def test_a_quota_without_candidates_goes_to_the_other_modality():
    scores = torch.tensor([[8.0, 7, 6, 5, 4, 3, 2, 1]])
    two_images = [False, True, False, False, False, True, False, False]
    kept = david.kept(scores, two_images, 1, 5, 3.0, True)  # floor(15 / 4) = 3 for vision
    assert kept == [[0, 1, 2, 3, 5, 7]]
    mostly_images = [True, True, True, False, True, True, True, True]
    kept = david.kept(scores, mostly_images, 1, 5, 0.5, True)  # 1 for vision, 4 for text
    assert kept == [[0, 1, 2, 3, 4, 7]]


# ---------------------------------------------------------------------------------------- LOOK-M

OF_EQUATIONS = {"lookm_paper_A_hh0.1_rr0.1_s0": 9, "lookm_paper_B_hh0.25_rr0.25_s2": 24}
OF_RELEASE, SIZE = "lookm_official_B_hh0.25_rr0.25_s2", 24

# the release's variants without text prior, in which 4 sinks are kept, and those with it
WITHOUT_PRIOR = ["pivot", "avg", "weighted"]
WITH_PRIOR = ["tp_pivot", "tp_avg", "tp_weighted"]


def lookm_of(file):
    given, _ = papers(file)
    q, k, v = (given[name][0] for name in "qkv")
    return given, lookm.importance(q, k), k, v


@pytest.mark.parametrize(("file", "size"), OF_EQUATIONS.items())
def test_lookm_scores_and_keeps_what_its_equations_say(file, size):
    given, scores, _, _ = lookm_of(file)
    prior = lookm.with_text_prior(scores, given["image_mask"].bool().tolist())
    assert_close(prior, given["A_s"], **TOLERANCE)
    assert lookm.kept(prior, size, size) == masked(given["keep"])


@pytest.mark.parametrize(
    ("how", "name"), [("averaged", "avg"), ("pivotal", "pivot"), ("weighted", "weighted")]
)
@pytest.mark.parametrize("file", OF_EQUATIONS)
def test_lookm_merges_as_its_equations_say(file, how, name):
    given, _, k, v = lookm_of(file)
    merged_k, merged_v = lookm.merge(k, v, masked(given["keep"]), how)
    assert_close(merged_k, given[f"K_{name}"], **MERGED)
    assert_close(merged_v, given[f"V_{name}"], **MERGED)


def test_lookm_scores_and_keeps_what_the_release_does_without_text_prior():
    given, scores, _, _ = lookm_of(OF_RELEASE)
    assert_close(scores, given["hh_score"], **TOLERANCE)
    assert lookm.kept(scores, SIZE, SIZE) == masked(given["h2o.keep"])
    for name in WITHOUT_PRIOR:
        assert lookm.kept(scores, SIZE, SIZE, sinks=4) == masked(given[f"{name}.keep"])


def test_lookm_keeps_what_the_release_does_with_text_prior_where_text_fits_the_budget():
    # Where it does not, the release keeps all text all the same. Its float16 ranking (keep_f16)
    # turns every image score into the same number: nothing to compare with.
    given, scores, _, _ = lookm_of(OF_RELEASE)
    prior = lookm.with_text_prior(scores, given["image_mask"].bool().tolist())
    for name in WITH_PRIOR:
        kept = lookm.kept(prior, SIZE, SIZE)
        assert kept == masked(given[f"{name}.keep"])
        assert kept == masked(given[f"{name}.keep_f64"])


@pytest.mark.parametrize("name", WITHOUT_PRIOR + WITH_PRIOR)
def test_the_nearest_kept_key_is_that_of_the_release(name):
    given, _, k, _ = lookm_of(OF_RELEASE)
    slots, cosines = lookm.nearest(k, masked(given[f"{name}.keep"]))
    assert slots == given[f"{name}.nearest_kept_slot"].tolist()
    assert_close(torch.tensor(cosines), given[f"{name}.cos"], **TOLERANCE)
    if "pivot" not in name:
        assert lookm.passes(cosines) == given[f"{name}.merged_filter"].bool().tolist()


# avg and tp_avg are not here: the release adds the first keys of all that are evicted to where
# those that passed its filter belong, so that there are no merged pairs to compare with.
@pytest.mark.parametrize("name", ["pivot", "weighted", "tp_pivot", "tp_weighted"])
def test_lookm_merges_as_the_release_does_which_filters_when_it_weights(name):
    given, _, k, v = lookm_of(OF_RELEASE)
    weighted = "weighted" in name
    how = "weighted" if weighted else "pivotal"
    kept = masked(given[f"{name}.keep"])
    merged_k, merged_v = lookm.merge(k, v, kept, how, similarity_filter=weighted)
    for suffix in ["", "_f64"] if name in WITH_PRIOR else [""]:
        assert_close(merged_k, given[f"{name}.K{suffix}"], **MERGED)
        assert_close(merged_v, given[f"{name}.V{suffix}"], **MERGED)


def test_sinks_take_places_of_the_important_tokens():
    scores = torch.tensor([[0.0, 0.0, 5.0, 9.0, 7.0, 1.0, 1.0]])
    assert lookm.kept(scores, 3, 2) == [[2, 3, 4, 5, 6]]
    assert lookm.kept(scores, 3, 2, sinks=2) == [[0, 1, 3, 5, 6]]
