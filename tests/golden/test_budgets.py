"""Budgets over layers and heads are those that the authors' released code gives."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.methods.pyramidkv import line
from foveate.profiles.profile import Profile
from foveate.stages.budget.head_table import capacities, released

from .test_baselines import with_ties_to_the_earlier
from .vectors import load

ADAKV = ("adakv_gqa_mean_a0.2_norm", "adakv_gqa_mean_a0.2_raw", "adakv_mha_a0.5_raw")


def assert_one_of_the_best(kept, head, theirs, window):
    """The same set, but for equal scores at its border, of which torch's topk takes any: maximum
    pooling makes plateaus, and ours keeps their earlier positions."""
    before = kept.mask.shape[-1] - window
    chosen = theirs[theirs < before]
    assert len(theirs) - len(chosen) == window
    settled, _ = with_ties_to_the_earlier(kept.scores[0, head, :before], chosen)
    assert kept.positions(0, head).tolist()[:-window] == sorted(settled), f"head {head}"


def windowed(args):
    return {
        "window": args["window_size"],
        "kernel": args["kernel_size"],
        "pool": args["pooling"].removesuffix("pool"),
    }


@pytest.mark.parametrize("file", ADAKV)
def test_adakv_keeps_what_the_release_keeps(file):
    given, args = load(file)
    policy = foveate.adakv(
        budget=args["base_capacity"],
        floor=args["floor_alpha"],
        normalised=args["normalize"],
        as_released=True,
        **windowed(args),
    )
    kept = foveate.compress_tensors(policy, [(given["query"], given["key"], given["value"])])[0]
    assert kept.counts[0].tolist() == given["head_lens"].tolist()
    starts = given["cu_klen"].tolist()
    for head in range(len(starts) - 1):
        theirs = given["kept_idx_flat"][starts[head] : starts[head + 1]]
        assert_one_of_the_best(kept, head, theirs, args["window_size"])


@pytest.mark.parametrize("file", ADAKV)
def test_adakv_without_the_rounding_of_the_release_keeps_exactly_the_budget(file):
    given, args = load(file)
    budget = args["base_capacity"]
    policy = foveate.adakv(
        budget=budget, floor=args["floor_alpha"], normalised=args["normalize"], **windowed(args)
    )
    kept = foveate.compress_tensors(policy, [(given["query"], given["key"], given["value"])])[0]
    assert int(kept.counts.sum()) == budget * kept.counts.shape[1]
    assert (kept.counts[0] - given["head_lens"]).abs().max() <= 2


def test_pyramidkvs_table_is_that_of_the_release():
    rows = load("pyramidkv_budget_table")[0]["table"].tolist()
    assert len(rows) == 36
    for layers, capacity, window, beta, length, *kept in rows:
        theirs = kept[:layers]
        if length < capacity:
            assert set(theirs) == {length}  # the prompt fits: nothing is compressed
            continue
        base, room = capacity - window, length - window
        ours = line(base, room, layers, beta, True)
        assert [tokens + window for tokens in ours] == theirs
        exact = line(base, room, layers, beta, False)
        assert sum(exact) == base * layers
        if room >= 2 * base:  # of shorter prompts the release gives every layer the same
            assert max(abs(a - b) for a, b in zip(ours, exact, strict=True)) <= layers
        else:
            assert len({*ours}) == 1
            assert layers == 1 or min(room, 2 * base - base // beta) == exact[0] > exact[-1]


def test_pyramidkv_keeps_what_the_release_keeps():
    given, args = load("pyramidkv_mid")
    policy = foveate.pyramidkv(
        budget=args["max_capacity_prompt"], beta=args["beta"], as_released=True, **windowed(args)
    )
    layer = (given["query"], given["key"], given["value"])
    for index, kept in enumerate(foveate.compress_tensors(policy, [layer] * 8)):
        theirs = given[f"kept_idx_layer{index}"]
        assert kept.counts[0].tolist() == [int(given["cache_len_per_layer"][index])] * 4
        for head in range(4):
            assert_one_of_the_best(kept, head, theirs[0, head], args["window_size"])


def tables(given, begin):
    """The file's tables of capacities, by what their names say: (name, budget, share)."""
    for name, table in given.items():
        if name.startswith("cap_"):
            *words, budget, share = name.removeprefix("cap_").split("_")
            yield "_".join(words), int(budget), float(share), table.long()


def test_headkvs_capacities_are_those_of_the_release():
    given, args = load("headkv_capacity")
    window, checked = args["window_size"], 0
    for name, budget, beta, theirs in tables(given, "cap_"):
        scores = given[f"norm_score_{name}"]
        ours = released(scores, budget, window, 10**6, 1 - 1 / beta, up=True) - window
        assert torch.equal(ours, theirs), (name, budget, beta)
        exact = capacities(scores, budget, window, 10**6, 1 - 1 / beta)
        assert int(exact.sum()) == budget * scores.numel()
        assert (
            (exact - window - theirs).abs() <= 2 + theirs * 0.02
        ).all()  # the even share's rounding
        checked += 1
    assert checked == 12


def test_sparsemms_capacities_are_those_of_the_release():
    given, args = load("sparsemm_capacity")
    window, checked = args["window_size"], 0
    for name, budget, ratio, theirs in tables(given, "cap_"):
        scores = given[f"kvscore_{name}"]
        ours = released(scores, budget, window, 10**6, ratio) - window
        assert torch.equal(ours, theirs), (name, budget, ratio)
        exact = capacities(scores, budget, window, 10**6, ratio)
        assert int(exact.sum()) == budget * scores.numel()
        assert (
            (exact - window - theirs).abs() <= 2 + theirs * 0.02
        ).all()  # the even share's rounding
        checked += 1
    assert checked == 4


@pytest.mark.parametrize("length", [300, 700, 10_000])
def test_what_a_head_cannot_use_goes_to_the_others(length):
    scores = load("sparsemm_capacity")[0]["kvscore_llava"]
    exact = capacities(scores, 288, 32, length, 0.1)
    assert int(exact.sum()) == 288 * scores.numel()
    assert int(exact.max()) <= length
    assert int(exact.min()) >= min(length, 32 + int(256 * 0.1))
    lapsed = released(scores, 288, 32, length, 0.1)
    assert (int(lapsed.sum()) < int(exact.sum()) - 1000) == (length < 5000)
    order = scores.flatten().argsort()
    assert bool((exact.flatten()[order].diff() >= -1).all())  # a higher score never keeps less


def test_sparsemm_keeps_what_the_release_keeps(tmp_path):
    given, args = load("sparsemm_update_mean")
    scores = load("sparsemm_capacity")[0]["kvscore_synth"]
    path = tmp_path / "heads.json"
    Profile(
        method="sparsemm", model="", layers=28, samples=1, budget="", by_layer=scores.tolist()
    ).save(path)
    policy = foveate.sparsemm(
        budget=args["base_capacity"],
        profile=str(path),
        ratio=args["ratio"],
        as_released=True,
        **windowed(args),
    )
    layer = (given["query"], given["key"], given["value"])
    kept = foveate.compress_tensors(policy, [layer] * 28)[args["layer_idx"]]
    assert kept.counts[0].tolist() == given["head_lens"].tolist()
    starts = given["cu_klen"].tolist()
    for head in range(4):
        theirs = given["kept_idx_flat"][starts[head] : starts[head + 1]]
        assert_one_of_the_best(kept, head, theirs, args["window_size"])
