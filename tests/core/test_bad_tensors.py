"""Tensors, masks and budgets that do not fit each other are refused, and named."""

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget, InvalidInput

from .prompts import compressed, prompt
from .users import unchecked


def test_a_budget_below_what_is_always_kept_of_this_prompt_is_refused_by_row():
    given = prompt([30, 8])
    with pytest.raises(InvalidBudget, match=r"10% keeps 1 of the 8 tokens of row 1.* the 3 that"):
        compressed(foveate.snapkv(budget="10%", window=3), given, strict=True)
    with pytest.raises(InvalidBudget, match=r"10% keeps 3 of the 30 tokens of row 0.* the 5 that"):
        compressed(foveate.snapkv(budget="10%", window=5), given, strict=True)


def tensors(*shapes):
    return tuple(torch.zeros(shape) for shape in shapes)


GOOD = [(2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 6)]
WRONG_SHAPES = {
    "three axes": [(4, 9, 8), (2, 9, 8), (2, 9, 8)],
    "rows differ": [(1, 4, 9, 8), *GOOD[1:]],
    "heads that do not divide": [(2, 3, 9, 8), *GOOD[1:]],
    "keys and values of other heads": [GOOD[0], (2, 2, 9, 8), (2, 1, 9, 6)],
    "queries of other tokens": [(2, 4, 8, 8), *GOOD[1:]],
    "values of other tokens": [*GOOD[:2], (2, 2, 8, 6)],
    "another head size of queries": [(2, 4, 9, 6), *GOOD[1:]],
    "no tokens": [(2, 4, 0, 8), (2, 2, 0, 8), (2, 2, 0, 6)],
    "no heads": [(2, 0, 9, 8), (2, 0, 9, 8), (2, 0, 9, 6)],
}


@pytest.mark.parametrize("first", [True, False], ids=["first layer", "second layer"])
@pytest.mark.parametrize("shapes", WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_tensors_that_do_not_fit_together_are_refused_with_their_shapes(shapes, first):
    layers = [tensors(*shapes), tensors(*GOOD)] if first else [tensors(*GOOD), tensors(*shapes)]
    with pytest.raises(InvalidInput) as refused, unchecked():
        foveate.compress_tensors(foveate.knorm(budget=3), layers)
    assert f"layer {0 if first else 1}" in str(refused.value)
    assert str(shapes[1]) in str(refused.value)


@pytest.mark.parametrize(
    "other",
    [
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 6)],
        [(1, 4, 9, 8), (1, 2, 9, 8), (1, 2, 9, 6)],
    ],
    ids=["tokens", "rows"],
)
def test_layers_of_different_prompts_are_refused(other):
    with pytest.raises(InvalidInput, match="layer 1"):
        foveate.compress_tensors(foveate.knorm(budget=3), [tensors(*GOOD), tensors(*other)])


def test_layers_may_differ_in_heads_and_head_sizes():
    layers = [tensors(*GOOD), tensors((2, 6, 9, 5), (2, 3, 9, 5), (2, 3, 9, 2))]
    kept = foveate.compress_tensors(foveate.knorm(budget=3), layers)
    assert [one.counts.tolist() for one in kept] == [[[3, 3]] * 2, [[3, 3, 3]] * 2]


def test_no_layers_are_refused():
    with pytest.raises(InvalidInput, match="layers is empty"):
        foveate.compress_tensors(foveate.full(), [])


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[1, 1, 0], [1, 1, 1]], "on the right"),
        ([[1, 0, 1], [1, 1, 1]], "in the middle"),
        ([[1, 1, 1], [0, 0, 0]], "row 1 is nothing but padding"),
        ([[1, 1, 1]], "shape \\(1, 3\\), expected \\(2, 3\\)"),
        ([[1, 1], [1, 1]], "shape \\(2, 2\\), expected \\(2, 3\\)"),
        ([1, 1, 1], "shape \\(3,\\)"),
    ],
)
def test_a_mask_that_is_not_left_padding_is_refused(mask, says):
    layers = [tensors((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4))]
    with pytest.raises(InvalidInput, match=says):
        foveate.compress_tensors(foveate.full(), layers, attention_mask=torch.tensor(mask))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (1, 3), (3,)])
def test_vision_of_another_shape_is_refused(shape):
    layers = [tensors((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4))]
    vision = torch.zeros(shape, dtype=torch.bool)
    with pytest.raises(InvalidInput, match="vision"), unchecked():
        foveate.compress_tensors(foveate.full(), layers, vision=vision)
