"""The baselines keep what the authors' released code keeps."""

import math

import pytest
import torch
from torch.testing import assert_close

import foveate

from .vectors import load


def kept_of(policy, q, k, v):
    return foveate.compress_tensors(policy, [(q, k, v)])[0]


def assert_same_sets(kept, positions):
    """``positions`` [1, h, s] in any order, none twice."""
    for head, expected in enumerate(positions[0].tolist()):
        assert kept.positions(0, head).tolist() == sorted(expected), f"head {head}"


def assert_same_pairs(kept, positions, key, value):
    """``key`` and ``value`` list the pairs in the order of ``positions``; ours ascend."""
    for head in range(positions.shape[1]):
        order = positions[0, head].argsort()
        assert torch.equal(kept.keys(0, head), key[0, head, order])
        assert torch.equal(kept.values(0, head), value[0, head, order])


# file -> what turns our scores into theirs. Ours are means over the window, whose length is the
# factor where the release sums; the reduction over the group and the pooling commute with it.
SNAPKV = {
    "snapkv_float32_avgpool_k5": 8,
    "snapkv_kvf_gqa_mean": 8,
    "snapkv_sparsemm_gqa_max": 1,
}


def snapkv_as_in(args):
    return foveate.snapkv(
        budget=args["max_capacity_prompt"],
        window=args["window_size"],
        kernel=args["kernel_size"],
        pool=args["pooling"].removesuffix("pool"),
        group=args.get("gqa_score_agg") or args.get("gqa_func") or "mean",
    )


@pytest.mark.parametrize(("file", "factor"), SNAPKV.items())
def test_snapkv_scores_are_those_of_the_release(file, factor):
    given, args = load(file)
    kept = kept_of(snapkv_as_in(args), given["query"], given["key"], given["value"])
    before = given["scores"].shape[-1]
    assert before == given["key"].shape[2] - args["window_size"]
    assert_close(kept.scores[..., :before] * factor, given["scores"], rtol=1e-4, atol=1e-7)
    assert bool((kept.scores[..., before:] == math.inf).all())


def with_ties_to_the_earlier(scores, chosen):
    """The release's choice among ``scores`` [n], where equal scores at its border, of which torch's
    topk takes any, go to the earlier positions; and how many of its own had to be exchanged."""
    border = scores[chosen].min()
    above = (scores > border).nonzero()[:, 0].tolist()
    tied = (scores == border).nonzero()[:, 0].tolist()
    settled = above + tied[: len(chosen) - len(above)]
    assert set(above) <= set(chosen.tolist()) <= set(above + tied)
    return settled, len(set(settled) - set(chosen.tolist()))


# maximum pooling makes plateaus: in this file the border runs through one, in head 0
EXCHANGED = {"snapkv_kvf_gqa_mean": [2, 0]}


@pytest.mark.parametrize("file", SNAPKV)
def test_snapkv_keeps_the_pairs_that_the_release_keeps(file):
    given, args = load(file)
    kept = kept_of(snapkv_as_in(args), given["query"], given["key"], given["value"])
    before = given["scores"].shape[-1]
    exchanged = []
    for head, order in enumerate(given["kept_idx"][0]):
        settled, count = with_ties_to_the_earlier(given["scores"][0, head], order[order < before])
        exchanged.append(count)
        window = list(range(before, before + args["window_size"]))
        assert kept.positions(0, head).tolist() == sorted(settled) + window
        keys = dict(zip(order.tolist(), given["key_out"][0, head], strict=True))
        values = dict(zip(order.tolist(), given["value_out"][0, head], strict=True))
        for i, position in enumerate(kept.positions(0, head).tolist()):
            if position in keys:
                assert torch.equal(kept.keys(0, head)[i], keys[position])
                assert torch.equal(kept.values(0, head)[i], values[position])
    assert exchanged == EXCHANGED.get(file, [0] * len(exchanged))


def test_snapkv_keeps_a_prompt_that_fits_its_budget_as_the_release_does():
    given, args = load("snapkv_noop")
    kept = kept_of(snapkv_as_in(args), given["query"], given["key"], given["value"])
    everything = torch.arange(given["key"].shape[2]).expand(given["key"].shape[:3])
    assert_same_sets(kept, everything)
    assert_same_pairs(kept, everything, given["key_out"], given["value_out"])


def test_h2o_scores_and_pairs_are_those_of_the_one_shot_release():
    given, args = load("h2o_kvf_oneshot_gqa_mean")
    policy = foveate.h2o(
        budget=args["max_capacity_prompt"], recent=args["window_size"], group=args["gqa_score_agg"]
    )
    kept = kept_of(policy, given["query"], given["key"], given["value"])
    before = given["scores"].shape[-1]
    assert_close(kept.scores[..., :before], given["scores"], rtol=1e-4, atol=1e-5)
    assert_same_sets(kept, given["kept_idx"])
    assert_same_pairs(kept, given["kept_idx"], given["key_out"], given["value_out"])


def test_knorm_keeps_the_lowest_key_norms_as_the_release_does_in_the_layers_it_does_not_skip():
    given, args = load("knorm_l2compress")
    tokens = given["keys"].shape[3]
    # the release rounds up, and leaves layer 0 whole
    policy = foveate.knorm(budget=math.ceil(args["keep_ratio"] * tokens))
    assert args["skip_layers"] == [0]
    assert given["layer0_kept"].shape[-1] == tokens
    layers = [(given["keys"][i], given["keys"][i], given["values"][i]) for i in (1, 2)]
    for index, kept in zip((1, 2), foveate.compress_tensors(policy, layers), strict=True):
        assert_same_sets(kept, given[f"layer{index}_kept"])


@pytest.mark.parametrize(
    ("coming", "expected"), [(0, "call_kept"), (3, "space_kept")], ids=["call", "evict_for_space"]
)
def test_streaming_llm_keeps_the_sinks_and_the_recent_tokens_of_the_release(coming, expected):
    given, args = load("streamingllm")
    budget = args["start_size"] + args["recent_size"] - coming
    policy = foveate.streaming_llm(budget=budget, sinks=args["start_size"])
    kept = kept_of(policy, given["key"], given["key"], given["value"])
    assert_same_sets(kept, given[expected])
    if coming == 0:
        assert_same_pairs(kept, given[expected], given["call_key"], given["call_value"])
