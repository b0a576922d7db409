"""MixKV's transcription returns what was recorded of its code, as far as that has no bugs."""

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import mixkv
from .recorded import TOLERANCE, seeded, sets

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
