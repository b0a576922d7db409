"""CSP's transcription returns what was recorded of its code, as far as that has no bugs."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import csp
from .recorded import TOLERANCE, masked

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
