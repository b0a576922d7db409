"""KVzap: the maps are fitted to KVzip+'s scores, and a threshold keeps what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidBudget, InvalidParameter, ProfileMismatch
from foveate.methods.kvzap import LEAST, RIDGE, SurrogateFit
from foveate.profiles.tensor_profile import load_tensors
from foveate.stages.budget import AboveThreshold, Uniform
from tests import zoo
from tests.conformance.compare import check_generate
from tests.core.prompts import compressed, prompt
from tests.profiles import saved_tensors, tensors_of
from tests.stages.layers import random_layer

HEADS, SIZE, DEPTH = 2, 4, 2


@pytest.fixture
def maps(tmp_path):
    """Drawn ones, and the file that they are in."""
    torch.manual_seed(3)
    held = [tensors_of("kvzap", HEADS, SIZE) for _ in range(DEPTH)]
    return held, str(saved_tensors(tmp_path, "kvzap", held))


def test_what_is_above_the_threshold_is_kept_with_both_ends(maps):
    """Head by head, from each pair by itself; rows are padded."""
    (held, path), given = maps, prompt([40, 23], h=HEADS, d=SIZE, depth=DEPTH)
    policy = foveate.kvzap(profile=path, threshold=-3.5, sinks=2, recent=5)
    counts = set()
    for mine, (_, k, v), kept in zip(held, given.layers, compressed(policy, given), strict=True):
        for row, (pad, length) in enumerate(zip(given.pads, given.lengths, strict=True)):
            for head in range(HEADS):
                k1, v1 = k[row, head, pad:].double(), v[row, head, pad:].double()
                score = k1 @ mine["of_key"][head].double() + v1 @ mine["of_value"][head].double()
                score += mine["offset"][head].double()
                above = [p for p in range(length) if score[p] >= -3.5]
                expected = {*above, 0, 1, *range(length - 5, length)}
                assert set((kept.positions(row, head) - pad).tolist()) == expected
                counts.add(len(expected))
    assert len(counts) > 4


def test_last_tokens_stay_within_a_budget(maps):
    """An answer loses characters without the end of its question."""
    given = prompt([60], h=HEADS, d=SIZE, depth=DEPTH)
    for kept in compressed(foveate.kvzap(profile=maps[1], budget="50%"), given):
        for head in range(HEADS):
            assert {57, 58, 59} <= set(kept.positions(0, head).tolist())


def test_a_cap_bounds_each_head_by_its_best(maps):
    given = prompt([40], h=HEADS, d=SIZE, depth=DEPTH)
    best = foveate.kvzap(profile=maps[1], budget="25%", recent=3).but(budget=Uniform(amount="25%"))
    capped, free = (
        best.but(budget=AboveThreshold(threshold=-9.0, amount=amount))
        for amount in ("auto(100%,floor=1,cap=25%)", "auto(100%)")
    )
    kept = (compressed(policy, given) for policy in (best, capped, free))
    for expected, one, uncapped in zip(*kept, strict=True):
        assert torch.equal(one.mask, expected.mask)
        assert bool((uncapped.counts > 10).all())


def literal_maps(given, score, head):
    """Ridge regression on standardised keys and values, by rows of the augmented system."""
    real = given.valid[:, head]
    x = torch.cat([given.k[:, head][real], given.v[:, head][real]], 1).double()
    y = score[:, head][real].double().clamp_min(LEAST).log()
    z = (x - x.mean(0)) / x.std(0, unbiased=False)
    below = (RIDGE * len(z)) ** 0.5 * torch.eye(z.shape[1], dtype=torch.float64)
    goal = torch.cat([y - y.mean(), y.new_zeros(len(below))])
    weights = torch.linalg.lstsq(torch.cat([z, below]), goal[:, None]).solution[:, 0]
    weights = weights / x.std(0, unbiased=False)
    return weights, y.mean() - x.mean(0) @ weights


def test_maps_are_fitted_by_ridge_regression_to_the_logarithm():
    given = random_layer((40, 31), h=HEADS, d=SIZE)
    score = torch.rand(given.pos.shape, generator=torch.Generator().manual_seed(1))
    fit = SurrogateFit()
    sums = fit.gather(replace(given, state={"reconstruction": score}), None)
    found = fit.finish(sums, None)
    for head in range(HEADS):
        weights, offset = literal_maps(given, score, head)
        ours = torch.cat([found["of_key"][head], found["of_value"][head]]).double()
        assert_close(ours, weights, rtol=1e-3, atol=1e-5)
        assert_close(found["offset"][head].double(), offset, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Profiles of two models, of prompts with images where they see."""
    found = {}
    for family in ("llama", "llava"):
        made = foveate.calibrate(zoo.build(family), "kvzap", [zoo.prompt(family, seed=1)])
        folder = tmp_path_factory.mktemp(family)
        found[family] = str(made.save(folder / "kvzap.safetensors"))
    return found


@pytest.mark.parametrize("family", ["llama", "llava"])
@pytest.mark.parametrize(
    "keeps", ["budget=40%", "threshold=-2.6,recent=4", "threshold=-2.6,recent=4,when=over_budget"]
)
def test_a_model_answers_as_with_the_rest_masked(calibrated, family, keeps):
    policy = foveate.policy(f"kvzap:profile={calibrated[family]},{keeps}")
    inputs = zoo.prompt(family, lengths=(23, 40) if family == "llama" else (40,), seed=3)
    check_generate(zoo.build(family), policy, inputs)


def test_it_is_fitted_to_attention_where_no_projection_can_be_read(calibrated):
    model = zoo.fresh("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj)
    made = foveate.calibrate(model, "kvzap", [zoo.prompt("llama", seed=1)])
    assert made.target == "attention"
    assert load_tensors(calibrated["llama"], "kvzap").target == "contribution"


def test_what_does_not_fit_together_is_refused(maps, calibrated):
    with pytest.raises(InvalidParameter, match=r"threshold=-4\.0 keeps any .*Give one"):
        foveate.kvzap(profile=maps[1], budget="20%", threshold=-4.0)
    with pytest.raises(InvalidBudget, match="budget 20%: a threshold takes no share"):
        AboveThreshold(threshold=-4.0, amount="20%")
    with pytest.raises(ProfileMismatch, match="calibrate kvzap"):
        foveate.compress(zoo.build("qwen2"), f"kvzap:profile={calibrated['llama']}")
    with pytest.raises(InvalidBudget, match="compresses again"):
        foveate.policy(f"kvzap:profile={maps[1]},budget=auto(0.9),when=over_budget")
