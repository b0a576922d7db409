"""LOOK-M's transcription returns what was recorded of its code, as far as that has no bugs."""

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import lookm
from .recorded import MERGED, TOLERANCE, masked

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
