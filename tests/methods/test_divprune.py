"""DivPrune's selection: against a literal reading, and the authors' output."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget
from tests.golden.vectors import load

from .visual import Visual, assert_keeps, visual


def farthest(distance, candidates, chosen, count):
    """The greedy choice: one place after the other, the farthest from those chosen before."""
    found = []
    while len(found) < count:
        left = [i for i in candidates if i not in found]
        reference = [*chosen, *found]
        if reference:
            gap = {i: min(float(distance[i, j]) for j in reference) for i in left}
        else:
            gap = {i: min(float(distance[i, j]) for j in left if j != i) for i in left}
        found.append(min(left, key=lambda i: (-gap[i], i)))
    return found


def literal(k, is_image, tokens, recent, sinks):
    """The kept positions of every head of one row."""
    t, found = k.shape[1], []
    always = {i for i in range(t) if i < sinks or i >= t - recent}
    for keys in k:
        unit = keys / keys.norm(dim=-1, keepdim=True)
        distance = 1 - unit @ unit.T
        text = [i for i in range(t) if not is_image[i] and i not in always]
        places = tokens - len(always)
        told = text[max(0, len(text) - places) :] if places else []
        candidates = [i for i in range(t) if is_image[i] and i not in always]
        chosen = [i for i in always if is_image[i]]
        seen = farthest(distance, candidates, chosen, min(places - len(told), len(candidates)))
        found.append(sorted([*always, *told, *seen]))
    return found


@pytest.mark.parametrize("layout", ["two images", "image", "text last", "text"])
@pytest.mark.parametrize(("recent", "sinks"), [(0, 0), (0, 4), (5, 2)])
def test_what_is_kept_is_what_a_literal_reading_keeps(layout, recent, sinks):
    given = visual([40, 9, 33], layout, g=2, d=16)
    policy = foveate.divprune(budget=26, recent=recent, sinks=sinks)
    assert_keeps(
        policy,
        given,
        lambda layer, row, tokens: literal(
            given.alone(layer, row)[1], given.images[row], tokens, recent, sinks
        ),
    )


@pytest.mark.parametrize("case", range(3))
def test_the_release_chooses_the_same_tokens(case):
    golden, args = load("divprune")
    vectors, n = golden[f"vectors{case}"][None, None], args["cases"][case]["tokens"]
    count = round(n * args["cases"][case]["threshold_ratio"])
    vision = torch.ones(1, n, dtype=torch.bool)
    policy = foveate.divprune(budget=count, sinks=0)
    (kept,) = foveate.compress_tensors(policy, [(vectors, vectors, vectors)], vision=vision)
    assert kept.positions(0, 0).tolist() == sorted(golden[f"selected{case}"].tolist())


def test_equal_keys_leave_in_the_order_of_the_prompt():
    k = torch.eye(3)[[0, 0, 1, 1, 2, 2, 0]][None, None]
    vision = torch.ones(1, 7, dtype=torch.bool)
    (kept,) = foveate.compress_tensors(
        foveate.divprune(budget=4, sinks=0), [(k, k, k)], vision=vision
    )
    assert kept.positions(0, 0).tolist() == [0, 1, 2, 4]


def test_protected_text_asks_for_a_budget_that_holds_it():
    given = visual([40])
    with pytest.raises(InvalidBudget, match="always kept"):
        given.keeps(foveate.divprune(budget=12, protect_text=True), strict=True)
    policy = foveate.divprune(budget=30, protect_text=True, sinks=0)
    (protected,), (first,) = given.keeps(policy), given.keeps(policy.but(protect_text=False))
    assert torch.equal(protected.mask, first.mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_what_the_same_numbers_in_float32_keep(dtype):
    given, policy = visual([120], h=3, d=32), foveate.divprune(budget=70)
    half = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    full = [tuple(x.float() for x in layer) for layer in half]
    (ours,), (theirs,) = (Visual(x, given.images).keeps(policy) for x in (half, full))
    assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("number", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(number):
    given, policy = visual([30, 20]), foveate.divprune(budget=22)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    (ours,), (theirs,) = Visual(layers, given.images).keeps(policy), given.keeps(policy)
    assert torch.equal(ours.mask, theirs.mask)
