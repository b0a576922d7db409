"""AirCache: against a literal reading of its equations."""

from __future__ import annotations

import math

import pytest
import torch

import foveate
from foveate.methods.aircache import skewness
from foveate.stages.budget import Uniform
from tests.literal.attention import top

from .visual import Visual, sets, visual


def softmax(q, k, who, whom):
    """What each of ``who`` pays to ``whom`` (causal), a dict for each."""
    found = []
    for i in who:
        seen = [j for j in whom if j <= i]
        logits = torch.stack([q[i].double() @ k[j].double() / math.sqrt(k.shape[1]) for j in seen])
        found.append(dict(zip(seen, logits.softmax(0).tolist(), strict=True)))
    return found


def average(of_heads):
    keys = of_heads[0].keys()
    return {j: sum(one[j] for one in of_heads) / len(of_heads) for j in keys}


def importance(q, k, is_image, alpha, kind):
    """Of one KV head (q [g, t, d], k [t, d]): of visual tokens, and of text."""
    t = k.shape[0]
    visual_places = [i for i in range(t) if is_image[i]]
    last_image = visual_places[-1] if visual_places else -1
    text = [i for i in range(t) if not is_image[i]]
    if kind == "instruction":
        text = [i for i in text if i > last_image]
    last = average([softmax(one, k, [t - 1], text)[0] for one in q])
    elite = [j for j in text if last[j] >= alpha * max(last.values())]
    seen = dict.fromkeys(visual_places, 0.0)
    for i in elite:
        paid = average([softmax(one, k, [i], [*visual_places, *elite])[0] for one in q])
        for j in visual_places:
            seen[j] += paid.get(j, 0.0) / len(elite)
    return seen, last


def measured(seen):
    """Strength and skewness of one head."""
    values = list(seen.values())
    n, mean = len(values), sum(values) / len(values)
    sigma = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1))
    third = sum(((x - mean) / sigma) ** 3 for x in values)
    return sum(values), n / ((n - 1) * (n - 2)) * third


def heads_of(given, layer, row):
    q, k, _ = given.alone(layer, row)
    group = q.shape[0] // k.shape[0]
    return [(q[h * group : (h + 1) * group], k[h]) for h in range(k.shape[0])]


PROMPTS = {
    "text last": {"lengths": [40], "layout": "text last"},
    "left-padded, grouped": {"lengths": [37, 24, 33], "g": 2},
}
every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)


@every_prompt
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["instruction", "all"])
@pytest.mark.parametrize("budget", [9, 21])
def test_what_a_layer_keeps_is_what_a_literal_reading_keeps(prompt, alpha, kind, budget):
    given = visual(**prompt)
    policy = foveate.aircache(budget=budget, alpha=alpha, text=kind)
    kept = given.keeps(policy.but(budget=Uniform(amount=budget)))[0]
    for row, is_image in enumerate(given.images):
        t, ours = len(is_image), sets(kept, row, given.pads[row])
        for head, (q, k) in enumerate(heads_of(given, 0, row)):
            seen, told = importance(q, k, is_image, alpha, kind)
            text = [i for i in range(t - 1) if not is_image[i]]
            first = [text[i] for i in top([told.get(i, 0.0) for i in text], budget - 1)]
            places = sorted(seen)
            rest = [places[i] for i in top([seen[i] for i in places], budget - 1 - len(first))]
            assert ours[head] == sorted([*first, *rest, t - 1]), (row, head)


@every_prompt
def test_layers_share_what_text_leaves_by_strength_and_skewness(prompt):
    given, depth, budget = visual(**prompt, depth=4, seed=5), 4, 21
    kept = given.keeps(foveate.aircache(budget=budget))
    for row, is_image in enumerate(given.images):
        found = []
        for layer in range(depth):
            heads = [
                importance(q, k, is_image, 0.9, "instruction")[0]
                for q, k in heads_of(given, layer, row)
            ]
            numbers = [measured(seen) for seen in heads]
            found.append([sum(column) / len(heads) for column in zip(*numbers, strict=True)])
        found = [(strength, max(0.0, skew)) for strength, skew in found]
        means = [sum(column) / depth for column in zip(*found, strict=True)]
        text, visual_tokens = is_image.count(False), is_image.count(True)
        left = budget - text
        counts = [int(one.counts[row, 0]) for one in kept]
        assert sum(counts) == depth * budget
        wish = [left * sum(x / m for x, m in zip(pair, means, strict=True)) / 2 for pair in found]
        if max(wish) <= visual_tokens:
            assert all(abs(c - text - w) <= 1.5 for c, w in zip(counts, wish, strict=True))
        else:
            assert max(counts) == text + visual_tokens


def test_a_budget_that_does_not_hold_the_text_is_the_same_for_every_layer():
    given = visual([40], "text last", depth=3)
    kept = given.keeps(foveate.aircache(budget=12))
    assert [set(one.counts.flatten().tolist()) for one in kept] == [{12}] * 3
    vision = given.vision[0]
    assert not any(bool((one.mask[0] & vision).any()) for one in kept)


def test_in_a_prompt_that_ends_in_an_image_the_last_token_is_the_elite():
    given = visual([30], "image")
    (kept,) = given.keeps(foveate.aircache(budget=9))
    for head, (q, k) in enumerate(heads_of(given, 0, 0)):
        (paid,) = softmax(q[0], k, [29], range(30))
        assert sets(kept)[head] == sorted([*top([paid[i] for i in range(29)], 8), 29])


def test_the_skewness_is_that_of_the_marked_ones():
    values = torch.tensor([[[1.0, 9.0, 2.0, 3.0, 50.0, 4.0]]])
    marked = torch.tensor([[[True, False, True, True, False, True]]])
    few = torch.tensor([[[True, True, False, False, False, False]]])
    expected = measured({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})[1]
    assert float(skewness(values, marked)) == pytest.approx(expected, abs=1e-9)
    right = skewness(torch.tensor([[[1.0, 1, 1, 7]]]), torch.ones(1, 1, 4, dtype=torch.bool))
    assert float(right) == pytest.approx(2.0)
    assert float(skewness(values, few)) == 0.0


@pytest.mark.parametrize("number", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(number):
    given, policy = visual([30, 20], g=2, depth=2), foveate.aircache(budget=19)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    found = Visual(layers, given.images).keeps(policy)
    for ours, theirs in zip(found, given.keeps(policy), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_as_the_same_numbers_in_float32(dtype):
    given, policy = visual([120], h=3, g=2, d=32, depth=2), foveate.aircache(budget=70)
    half = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    full = [tuple(x.float() for x in layer) for layer in half]
    both = (Visual(x, given.images).keeps(policy) for x in (half, full))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours.scores, theirs.scores)
        assert torch.equal(ours.mask, theirs.mask)
