"""FastV and PyramidDrop, which drop tokens while the prompt is read, as what they leave in the
cache: against literal readings.
"""

from __future__ import annotations

import math

import pytest
import torch

import foveate
from foveate.methods.fastv import WholeFirst
from tests.golden.vectors import load
from tests.literal.attention import attention, top

from .visual import Visual, sets, visual

PROMPTS = {
    "text last": {"lengths": [40], "layout": "text last"},
    "left-padded, grouped": {"lengths": [40, 26, 33], "g": 2},
}
every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
RULES = {
    "fastv": foveate.fastv(budget=20),
    "fastv, all": foveate.fastv(budget=20, by="all"),
    "pyramiddrop": foveate.pyramiddrop(budget=20),
}
every_rule = pytest.mark.parametrize("policy", RULES.values(), ids=RULES)


def chosen(t, is_image, paid, count):
    """Text first, then visual tokens, each by what they are paid; the last token in any case."""
    text = [i for i in range(t - 1) if not is_image[i]]
    seen = [i for i in range(t - 1) if is_image[i]]
    told = [text[i] for i in top([paid[i] for i in text], min(len(text), count - 1))]
    rest = [seen[i] for i in top([paid[i] for i in seen], count - 1 - len(told))]
    return sorted([*told, *rest, t - 1])


@every_prompt
@pytest.mark.parametrize("by", ["last", "all"])
@pytest.mark.parametrize(("layers", "budget"), [(1, 20), (2, 30), (2, 12), (9, 20)])
def test_fastv_keeps_in_later_layers_what_it_chose_in_the_last_whole_one(
    prompt, by, layers, budget
):
    given, depth = visual(**prompt, depth=5, seed=2), 5
    kept = given.keeps(foveate.fastv(budget=budget, layers=layers, by=by))
    for row, is_image in enumerate(given.images):
        t = len(is_image)
        if t <= budget:
            continue
        totals = [int(one.counts[row, 0]) for one in kept]
        assert sum(totals) == depth * budget
        first, floor = min(layers, depth), int(budget * 0.25)
        if first < depth:
            whole = min(first * t, depth * budget - (depth - first) * floor)
            assert sum(totals[:first]) == whole
            assert max(totals[first:]) - min(totals[first:]) <= 1
        for layer in range(depth):
            q, k, _ = given.alone(min(layer, first - 1), row)
            rows = attention(q, k).mean(0)
            paid = rows[-1] if by == "last" else rows.sum(0) / torch.arange(t, 0, -1)
            expected = chosen(t, is_image, paid.tolist(), totals[layer])
            assert sets(kept[layer], row, given.pads[row]) == [expected] * k.shape[0]


def test_fastvs_counts_are_exact_and_whole_where_the_budget_allows_it():
    counts = WholeFirst(32, 2, 0.25)
    assert counts(100, 1, 1000) == (1000, 1000, *[40] * 30)
    assert counts(50, 1, 1000)[:2] == (620, 620)
    assert WholeFirst(2, 2, 0.25)(50, 1, 1000) == (50, 50)
    for tokens in range(3, 60):
        for depth in (1, 2, 3, 7):
            found = WholeFirst(depth, 2, 0.25)(tokens, 3, 60)
            assert sum(found) == depth * tokens
            assert all(3 <= count <= 60 for count in found)


def dropped(q, k, alive):
    """What the last query pays to what is alive, on average over heads."""
    t, d = k.shape[1:]
    group = q.shape[0] // k.shape[0]
    total = [0.0] * t
    for head in range(q.shape[0]):
        logits = [float(q[head, -1].double() @ k[head // group, i].double()) for i in alive]
        paid = (torch.tensor(logits).double() / math.sqrt(d)).softmax(0).tolist()
        for i, weight in zip(alive, paid, strict=True):
            total[i] += weight / q.shape[0]
    return total


@every_prompt
@pytest.mark.parametrize("ratio", [0.5, 0.8])
@pytest.mark.parametrize(("depth", "stages", "budget"), [(8, 4, 27), (6, 3, 32), (3, 4, 29)])
def test_pyramiddrops_parts_keep_some_of_what_the_part_before_kept(
    prompt, ratio, depth, stages, budget
):
    given = visual(**prompt, depth=depth, seed=3)
    kept = given.keeps(foveate.pyramiddrop(budget=budget, stages=stages, ratio=ratio))
    for row, is_image in enumerate(given.images):
        t, text = len(is_image), is_image.count(False)
        if t <= budget:
            continue
        totals = [int(one.counts[row, 0]) for one in kept]
        assert sum(totals) == depth * budget
        parts = [layer * stages // depth for layer in range(depth)]
        scale = (budget - text) * depth / sum(ratio**p for p in parts)
        if scale < t - text:  # nothing is capped
            wish = [text + scale * ratio**part for part in parts]
            assert all(abs(c - w) <= 1 for c, w in zip(totals, wish, strict=True))
        for layer in range(depth):
            if layer == 0 or parts[layer] != parts[layer - 1]:
                alive = sets(kept[layer - 1], row, given.pads[row])[0] if layer else range(t)
                paid = dropped(*given.alone(layer, row)[:2], alive)
            ours = sets(kept[layer], row, given.pads[row])
            told = [i for i in alive if not is_image[i]]
            seen = [i for i in alive if is_image[i]]
            best = [seen[i] for i in top([paid[i] for i in seen], totals[layer] - len(told))]
            assert ours == [sorted([*told, *best])] * len(ours), (row, layer)


def test_pyramiddrop_keeps_what_the_release_does_not_drop():
    golden, args = load("pyramiddrop")
    length = args["pre"] + args["img"] + args["post"]
    vision = torch.zeros(1, length, dtype=torch.bool)
    vision[:, args["pre"] : args["pre"] + args["img"]] = True
    kept = [golden[f"kept{layer}"].tolist() for layer in range(3)]
    layers = [tuple(golden[f"{name}{layer}"] for name in "qkv") for layer in range(3)]
    policy = foveate.pyramiddrop(budget=sum(map(len, kept)) // 3, stages=3)
    found = foveate.compress_tensors(policy, layers, vision=vision)
    for ours, theirs in zip(found, kept, strict=True):
        assert sets(ours) == [theirs] * 4


def test_text_that_does_not_fit_is_ranked_by_the_same_attention():
    given = visual([40], "text", depth=4)
    for policy in RULES.values():
        assert sum(int(one.counts[0, 0]) for one in given.keeps(policy)) == 4 * 20
    paid = attention(*given.alone(0, 0)[:2]).mean(0)[-1].tolist()
    first = given.keeps(RULES["pyramiddrop"])[0]
    assert sets(first) == [chosen(40, [False] * 40, paid, 20)] * 2


@every_rule
@pytest.mark.parametrize("number", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(policy, number):
    given = visual([34, 25], g=2, depth=4)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    found = Visual(layers, given.images).keeps(policy)
    for ours, theirs in zip(found, given.keeps(policy), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@every_rule
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_as_the_same_numbers_in_float32(policy, dtype):
    given, policy = visual([120], h=3, g=2, d=32, depth=4), policy.but(budget=70)
    half = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    full = [tuple(x.float() for x in layer) for layer in half]
    both = (Visual(x, given.images).keeps(policy) for x in (half, full))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours.mask, theirs.mask)
