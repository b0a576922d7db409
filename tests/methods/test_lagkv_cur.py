"""LagKV and CurDKV keep what a slow transcription of their scores keeps."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.methods.cur import CurLeverage
from foveate.methods.lagkv import LagRelative
from tests.literal.attention import top
from tests.methods.test_literal import BUDGET, PROMPTS, assert_kept
from tests.methods.visual import visual
from tests.stages.layers import changed, random_layer

every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)


def lag_scores(k, v, sinks, lag, cross, weight=1.0):
    """Of one head's keys and values [t, d], behind the sinks; above 1 where nothing is compared."""
    t = len(k)
    parts = (t - sinks) // lag
    if parts < 2:
        return [i / (t - sinks) for i in range(t - sinks)]
    scores = []
    for part in range(parts - 1):
        here = range(sinks + part * lag, sinks + (part + 1) * lag)
        behind = range(sinks + (part + 1) * lag, sinks + (part + 2) * lag)
        mean = torch.zeros(lag, dtype=torch.float64)
        for states, share in ((k.double(), 1 / (1 + weight)), (v.double(), weight / (1 + weight))):
            low = [min(float(states[i, c]) for i in behind) for c in range(states.shape[1])]
            high = [max(float(states[i, c]) for i in behind) for c in range(states.shape[1])]
            spread = []
            for i in here:
                seen = [
                    (float(states[i, c]) - a) / (b - a)
                    for c, (a, b) in enumerate(zip(low, high, strict=True))
                ]
                middle = sum(seen) / len(seen)
                spread.append((sum((x - middle) ** 2 for x in seen) / (len(seen) - 1)) ** 0.5)
            mean += share * torch.tensor(spread, dtype=torch.float64).softmax(0)
        found = mean.tolist()
        order = sorted(range(lag), key=lambda i: found[i])
        scores += [found[i] if cross else order.index(i) / lag for i in range(lag)]
    return scores + [1.0 + i for i in range(len(scores), t - sinks)]


@every_prompt
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(
    ("sinks", "lag", "weight"), [(4, 5, 1.0), (0, 4, 0.5), (2, 3, 0.0), (3, 20, 1.0)]
)
def test_lagkv(prompt, cross, sinks, lag, weight):
    def literal(q, k, v, is_image):
        found = []
        for keys, values in zip(k, v, strict=True):
            scores = lag_scores(keys, values, sinks, lag, cross, weight)
            chosen = top(scores, BUDGET - sinks)
            found.append([*range(sinks), *(sinks + i for i in chosen)])
        return found

    policy = foveate.lagkv(
        budget=BUDGET, sinks=sinks, lag=lag, cross_scoring=cross, value_weight=weight
    )
    assert_kept(visual(**prompt), policy, literal)


def test_lagkv_counts_the_parts_of_what_each_head_holds():
    """Head 1 has lost a token: its parts begin behind its own first tokens."""
    whole = random_layer((21,), h=2, g=1)
    pos = torch.arange(21).expand(1, 2, 21).clone()
    pos[0, 1] = torch.tensor([-1, *range(8), *range(9, 21)])
    k, v = (x.clone() for x in (whole.k, whole.v))
    for x in (k, v):
        x[0, 1, 1:9] = x[0, 1, :8].clone()
        x[0, 1, 0] = torch.nan
    layer = changed(whole, pos=pos, k=k, v=v)
    found = LagRelative(sinks=1, lag=5)(layer).values[0, 1, 1:]
    alone = random_layer((20,), h=1, g=1)
    alone = changed(alone, k=k[:, 1:, 1:], v=v[:, 1:, 1:])
    assert_close(found, LagRelative(sinks=1, lag=5)(alone).values[0, 0])


@pytest.mark.parametrize("cross", [False, True])
def test_a_channel_that_does_not_vary_does_no_harm(cross):
    layer = random_layer((30, 21), d=4)
    k = layer.k.clone()
    k[..., 1] = 3.0
    k[..., 2] = 0.0
    found = LagRelative(lag=4, cross_scoring=cross)(changed(layer, k=k)).values
    assert bool(found[layer.valid].isfinite().all())
    assert bool(LagRelative(lag=1)(layer).values[layer.valid].isfinite().all())


def test_a_budget_that_does_not_hold_the_last_part_keeps_the_newest():
    given = visual([40, 33])
    (kept,) = given.keeps(foveate.lagkv(budget=7, sinks=2, lag=8))
    for row, length in enumerate(given.lengths):
        newest = [0, 1, *range(length - 5, length)]
        assert (kept.positions(row, 0) - given.pads[row]).tolist() == newest


def cur_scores(k, v, leverage, local):
    """Of one head."""
    shares = []
    for states in (k.double(), v.double()):
        squares = [float(x @ x) for x in states]
        if local is not None:
            windows = [squares[a : a + local] for a in range(0, len(squares), local)]
            squares = [x / sum(window) for window in windows for x in window]
        shares.append(squares)
    how = {
        "product": lambda a, b: a * b,
        "mean": lambda a, b: (a + b) / 2,
        "key": lambda a, b: a,
        "value": lambda a, b: b,
    }[leverage]
    mixed = [how(a, b) for a, b in zip(*shares, strict=True)]
    return [x / sum(mixed) for x in mixed]


@every_prompt
@pytest.mark.parametrize("leverage", ["product", "mean", "key", "value"])
@pytest.mark.parametrize(("local", "sinks"), [(16, 4), (7, 0), (None, 2)])
def test_cur(prompt, leverage, local, sinks):
    def literal(q, k, v, is_image):
        found = []
        for keys, values in zip(k, v, strict=True):
            scores = cur_scores(keys, values, leverage, local)[sinks:]
            found.append([*range(sinks), *(sinks + i for i in top(scores, BUDGET - sinks))])
        return found

    policy = foveate.cur(budget=BUDGET, leverage=leverage, local=local, sinks=sinks)
    assert_kept(visual(**prompt), policy, literal)


def test_cur_scores_add_up_to_one():
    layer = random_layer((23, 40))
    for leverage in ("product", "mean", "key", "value"):
        total = (CurLeverage(leverage=leverage)(layer).values * layer.valid).sum(-1)
        assert_close(total, torch.ones(2, 2))


def test_many_random_directions_come_near_the_norms_and_a_seed_decides_them():
    layer = random_layer((40,), d=16)
    exact = CurLeverage()(layer).values
    near = CurLeverage(rank=4096)(layer).values
    assert_close(near, exact, rtol=0.1, atol=1e-3)
    few = CurLeverage(rank=3)(layer).values
    assert torch.equal(few, CurLeverage(rank=3)(layer).values)
    assert not torch.equal(few, CurLeverage(rank=3, seed=1)(layer).values)


def test_what_is_all_zeros_scores_nothing():
    layer = random_layer((20,))
    found = CurLeverage()(changed(layer, k=layer.k * 0)).values
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("score", [LagRelative(lag=4), CurLeverage(), CurLeverage(rank=5)])
def test_values_may_have_another_size_than_keys(score):
    layer = random_layer((30, 17), d=6)
    wide = torch.cat([layer.v, layer.v], -1)
    found = score(changed(layer, v=wide)).values
    assert found.shape == (2, 2, 30)
    assert bool(found[layer.valid].isfinite().all())
