"""BACON: against a literal reading, and the authors' output."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.cache.layer import Scores
from foveate.methods.bacon import BoundaryEvidence
from foveate.policies.spec import stage
from foveate.stages.score import RandomScore
from tests.golden.vectors import load
from tests.literal.attention import attention, top
from tests.stages.layers import layer_of

from .visual import Visual, sets, visual

MODES = {"plain": "e", "local": "el", "trace": "elt"}


def pooled(values, kernel, how="avg"):
    reach, n = kernel // 2, len(values)
    near = [values[max(0, i - reach) : i + reach + 1] for i in range(n)]
    return [sum(x) / kernel if how == "avg" else max(x) for x in near]


def literal(layers, *, tokens, window, kernel, evidence):
    """The kept positions of every layer and head of one row; (q, k) of every layer."""
    found, earlier = [], []
    for q, k in layers:
        heads, t = k.shape[:2]
        rows = attention(q, k).view(heads, -1, t, t).mean(1)
        mine, of_layer = [], []
        for head in range(heads):
            last = [x / window for x in rows[head, -window:, : t - window].sum(0).tolist()]
            base = pooled(last, kernel)
            newest = pooled(rows[head, -1, : t - window].tolist(), kernel)
            extra = [max(0.0, a - b) for a, b in zip(newest, base, strict=True)]
            mine.append(extra)
            traced = list(extra)
            if evidence != "plain":
                traced = [a + b for a, b in zip(traced, pooled(extra, 5), strict=True)]
            if evidence == "trace" and earlier:
                before = [one[head] for one in earlier[-4:]]
                traced = [x + sum(b[i] for b in before) / len(before) for i, x in enumerate(traced)]
            count = max(1, min(2 * (tokens - window), t - window))
            best = [sorted(x, reverse=True)[:count] for x in (base, traced)]
            weight = 0.5 * statistics.pstdev(best[0]) / (statistics.pstdev(best[1]) + 1e-8)
            if evidence == "trace":
                means = [statistics.fmean(x) for x in best]
                weight *= min(1.0, max(0.0, means[1] / (means[0] + 1e-8)))
            score = [b + weight * e for b, e in zip(base, traced, strict=True)]
            of_layer.append(sorted([*top(score, tokens - window), *range(t - window, t)]))
        earlier.append(mine)
        found.append(of_layer)
    return found


@pytest.mark.parametrize("evidence", MODES)
@pytest.mark.parametrize(("lengths", "g"), [([40], 1), ([37, 26, 33], 3)])
def test_what_is_kept_is_what_a_literal_reading_keeps(evidence, lengths, g):
    given, depth, settings = visual(lengths, g=g, depth=6), 6, {"window": 6, "kernel": 3}
    kept = given.keeps(foveate.bacon(budget=14, evidence=evidence, **settings))
    for row in given.rows():
        layers = [given.alone(layer, row)[:2] for layer in range(depth)]
        expected = literal(layers, tokens=14, evidence=evidence, **settings)
        for layer in range(depth):
            assert sets(kept[layer], row, given.pads[row]) == expected[layer], (layer, row)


@stage("test_given_base")
@dataclass(frozen=True, kw_only=True)
class GivenBase(RandomScore):
    """The window's score that the release was given, and nothing for the window itself."""

    def __call__(self, layer):
        given, _ = load("bacon")
        return Scores(torch.nn.functional.pad(given["base"][layer.ordinal], (0, 1)))


@pytest.mark.parametrize("evidence", MODES)
def test_the_release_scores_the_same(evidence):
    given, args = load("bacon")
    score = BoundaryEvidence(of=GivenBase(), window=1, kernel=1, evidence=evidence)
    notes = []
    for place, last in enumerate(given["last"]):
        rest = 1 - last.sum(-1, keepdim=True).clamp_max(1.0)
        paid = torch.cat([last, rest], -1)  # what the last query pays itself
        n = paid.shape[-1]
        layer = layer_of(
            paid.clamp_min(1e-30).log()[:, :, None],
            torch.eye(n).expand(1, 2, n, n),
            scale=1.0,
            ordinal=place,
            depth=len(given["last"]),
            earlier=tuple(notes),
            tokens=torch.tensor([args["per_head_budget"] + 1]),
        )
        found = score(layer)
        notes.append(found.notes)
        theirs = given[f"score_{MODES[evidence]}"][place]
        assert_close(found.values[..., :-1], theirs, rtol=1e-4, atol=1e-6)


def test_without_strength_it_is_the_score_that_it_wraps():
    given = visual([50], g=2, depth=2)
    plain = given.keeps(foveate.snapkv(budget=20, window=8))
    for ours, theirs in zip(
        given.keeps(foveate.bacon(budget=20, window=8, strength=0.0)), plain, strict=True
    ):
        assert torch.equal(ours.mask, theirs.mask)
    both = foveate.policy("adakv+bacon:budget=20,window=8")
    assert both.score.of == foveate.adakv(budget=20, window=8).score


@pytest.mark.parametrize("number", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(number):
    given, policy = visual([30, 20], g=2, depth=3), foveate.bacon(budget=12, window=5)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    found = Visual(layers, given.images).keeps(policy)
    for ours, theirs in zip(found, given.keeps(policy), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_as_the_same_numbers_in_float32(dtype):
    given, policy = visual([120], h=3, g=2, d=32, depth=2), foveate.bacon(budget=50, window=16)
    half = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    full = [tuple(x.float() for x in layer) for layer in half]
    both = (Visual(x, given.images).keeps(policy) for x in (half, full))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours.scores, theirs.scores)
