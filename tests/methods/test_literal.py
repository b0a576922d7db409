"""Baselines without a golden file, against slow transcriptions of their equations."""

from __future__ import annotations

import math

import pytest
import torch

import foveate
from foveate.methods.adakv import AcrossHeads
from foveate.methods.prefixkv import PrefixBudget
from foveate.methods.pyramidkv import Pyramid
from tests.literal.attention import attention, top
from tests.methods.visual import visual

PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
    "text last": {"lengths": [33, 40], "layout": "text last", "g": 3},
}
every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
BUDGET = 14


def assert_kept(given, policy, literal, layer=0):
    """``literal(q, k, v, is_image)`` gives the kept positions of every head of one row."""
    kept = given.keeps(policy)[layer]
    for row in given.rows():
        expected = literal(*given.alone(layer, row), given.images[row])
        pad = given.pads[row]
        for head, positions in enumerate(expected):
            ours = (kept.positions(row, head) - pad).tolist()
            assert ours == sorted(positions), (row, head)


@every_prompt
@pytest.mark.parametrize("shared", [True, False])
def test_tova(prompt, shared):
    def literal(q, k, v, is_image):
        last = attention(q, k)[:, -1]
        heads, group = k.shape[0], q.shape[0] // k.shape[0]
        found = []
        for head in range(heads):
            rows = last if shared else last[head * group : (head + 1) * group]
            mean = rows.mean(0).tolist()
            found.append([*top(mean[:-1], BUDGET - 1), len(mean) - 1])
        return found

    assert_kept(visual(**prompt), foveate.tova(budget=BUDGET, shared=shared), literal)


@every_prompt
def test_keydiff(prompt):
    def literal(q, k, v, is_image):
        found = []
        for keys in k.double():
            unit = [key / key.norm() for key in keys]
            mean = sum(unit) / len(unit)
            different = [-float(u @ mean / (u.norm() * mean.norm())) for u in unit]
            found.append(top(different, BUDGET))
        return found

    assert_kept(visual(**prompt), foveate.keydiff(budget=BUDGET), literal)


@every_prompt
@pytest.mark.parametrize(("recent", "sinks"), [(3, 2), (0, 0)])
def test_roco(prompt, recent, sinks):
    def literal(q, k, v, is_image):
        rows = attention(q, k)
        heads, t = k.shape[:2]
        group = q.shape[0] // heads
        found = []
        for head in range(heads):
            mean_rows = rows[head * group : (head + 1) * group].mean(0)
            means, deviations = [], []
            for slot in range(t):
                seen = [float(mean_rows[i, slot]) for i in range(slot, t)]
                mean = sum(seen) / len(seen)
                means.append(mean)
                square = sum(x * x for x in seen) / len(seen) - mean * mean
                deviations.append(math.sqrt(max(0.0, square)))
            free = [i for i in range(t) if sinks <= i < t - recent]
            leave = t - BUDGET
            k_low = max(len(free) - leave, leave)
            steady = sorted(free, key=lambda i: (deviations[i], i))[:k_low]
            gone = sorted(steady, key=lambda i: (means[i], -i))[:leave]
            found.append([i for i in range(t) if i not in gone])
        return found

    policy = foveate.roco(budget=BUDGET, recent=recent, sinks=sinks)
    assert_kept(visual(**prompt), policy, literal)


@every_prompt
@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("window", [8, 256])
def test_expected_attention(prompt, covariance, window):
    def literal(q, k, v, is_image):
        heads, t, d = k.shape
        group = q.shape[0] // heads
        found = []
        for head in range(heads):
            scores = torch.zeros(t, dtype=torch.float64)
            for one in range(group):
                queries = q[head * group + one, -window:].double()
                mean = queries.mean(0)
                cov = (queries - mean).T @ (queries - mean) / len(queries)
                logits = torch.zeros(t, dtype=torch.float64)
                for j in range(t):
                    key = k[head, j].double()
                    logits[j] = mean @ key / math.sqrt(d)
                    if covariance:
                        logits[j] += key @ cov @ key / (2 * d)
                scores += logits.softmax(0) / group
            scores = (scores + 0.01) * v[head].double().norm(dim=-1)
            found.append([0, 1, *(2 + i for i in top(scores[2:].tolist(), BUDGET - 2))])
        return found

    policy = foveate.expected_attention(
        budget=BUDGET, window=window, covariance=covariance, epsilon=0.01, sinks=2
    )
    assert_kept(visual(**prompt), policy, literal)


def late(is_image):
    """Queries after the last image; at least the last one."""
    visual_places = [i for i, image in enumerate(is_image) if image]
    first = visual_places[-1] + 1 if visual_places else 0
    return range(min(first, len(is_image) - 1), len(is_image))


@every_prompt
def test_vl_cache_scores(prompt):
    def literal(q, k, v, is_image):
        rows = attention(q, k)
        heads, t = k.shape[:2]
        group = q.shape[0] // heads
        found = []
        for head in range(heads):
            paid = rows[head * group : (head + 1) * group, list(late(is_image))].sum(1).mean(0)
            found.append([*top(paid[:-1].tolist(), BUDGET - 1), t - 1])
        return found

    policy = foveate.vl_cache(budget=BUDGET, recent=1)
    uniform = foveate.stages.budget.Uniform(amount=BUDGET)
    assert_kept(visual(**prompt), policy.but(budget=uniform), literal)


@every_prompt
def test_vl_cache_budgets_follow_the_density(prompt):
    given = visual(**prompt, depth=3, seed=5)
    sharper = [(q * (1 + 2 * i), k, v) for i, (q, k, v) in enumerate(given.layers)]
    given = given._replace(layers=sharper)
    policy = foveate.vl_cache(budget=BUDGET, recent=1)
    scored = given.scored(policy)
    for row in given.rows():
        densities = []
        for layer in range(3):
            q, k, _ = given.alone(layer, row)
            rows = attention(q, k)
            dense = seen = 0
            for head_rows in rows:
                for i in late(given.images[row]):
                    high = float(head_rows[i, : i + 1].max())
                    dense += sum(float(x) >= 0.01 * high for x in head_rows[i, : i + 1])
                    seen += i + 1
            densities.append(dense / seen)
            ours = float(scored[layer].scores.notes["density"][row])
            assert ours == pytest.approx(densities[-1], abs=1e-6)
        kept = [k.counts[row, 0] for k in given.keeps(policy)]
        assert sum(int(k) for k in kept) == 3 * BUDGET
        wish = [3 * BUDGET * x / sum(densities) for x in densities]
        assert all(abs(int(k) - w) <= 1.5 for k, w in zip(kept, wish, strict=True))


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
def test_pyramid_totals_are_exact_and_fall(depth):
    given = visual([60, 41], depth=depth)
    kept = given.keeps(foveate.pyramidkv(budget=14, window=4, beta=5))
    for row in given.rows():
        counts = [int(layer.counts[row, 0]) for layer in kept]
        assert sum(counts) == 14 * depth
        assert counts == sorted(counts, reverse=True)
        assert depth == 1 or counts[0] > counts[-1]


LAYERS = {"even": None, "pyramid": Pyramid(amount=1), "prefix": PrefixBudget(amount=1)}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_adakv_over_any_layer_budget_is_exact(layers):
    given = visual([60, 41, 22], g=2, h=3, depth=3)
    policy = foveate.adakv(budget=14, window=4)
    if layers is not None:
        policy = policy.but(budget=AcrossHeads(amount=14, layers=layers))
        assert policy.budget.layers.amount == policy.amount
    assert foveate.policy(policy.spec) == policy
    kept = given.keeps(policy)
    for row in given.rows():
        assert sum(int(layer.counts[row].sum()) for layer in kept) == 14 * 3 * 3
        assert all(int(layer.counts[row].min()) >= 4 for layer in kept)
    assert any(len(set(layer.counts[0].tolist())) > 1 for layer in kept)
