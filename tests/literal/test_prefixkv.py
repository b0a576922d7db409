"""PrefixKV's transcription returns what was recorded of its code, as far as that has no bugs."""

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import prefixkv
from .recorded import MERGED, TOLERANCE

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
