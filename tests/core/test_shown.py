"""What stages are shown of a prompt: positions without padding, images, queries."""

from itertools import groupby
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.cache.layer import Scores
from foveate.errors import MissingModality
from foveate.stages.budget import Uniform
from foveate.stages.score import KeyNorm

from .lean import lean
from .prompts import Spy, compressed, prompt, sets


def shown(given, **how):
    spy = Spy()
    policy = foveate.knorm(budget=1).but(score=spy)
    foveate.compress_tensors(policy, given.layers, attention_mask=given.mask, **how)
    return spy.shown


def test_stages_are_shown_positions_without_padding_and_the_place_of_the_layer():
    given = prompt([3, 5], h=2, g=2, d=4, depth=3)
    layers = shown(given)
    for index, (layer, (q, k, v)) in enumerate(zip(layers, given.layers, strict=True)):
        assert (layer.ordinal, layer.depth, layer.groups) == (index, 3, 2)
        assert layer.pos.tolist() == [[[-2, -1, 0, 1, 2]] * 2, [[0, 1, 2, 3, 4]] * 2]
        assert layer.q_pos.tolist() == [[-2, -1, 0, 1, 2], [0, 1, 2, 3, 4]]
        assert layer.lengths.tolist() == [3, 5]
        assert layer.slots.mask is None
        assert layer.slots.image is None
        assert (layer.q is q, layer.k is k, layer.v is v) == (True, True, True)
        assert [note["index"].item() for note in layer.earlier] == list(range(index))


def test_the_scale_is_one_over_the_root_of_the_head_size_unless_given():
    assert shown(prompt([5], d=4))[0].scale == 0.5
    assert shown(prompt([5], d=4), scale=1.0)[0].scale == 1.0
    assert shown(prompt([5], d=4), scale=0.0)[0].scale == 0.0


@lean
@given(rows=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3))
def test_every_run_of_visual_tokens_is_an_image_numbered_within_its_row(rows):
    expected = []
    for row in rows:
        numbered, image = [], -1
        for visual, run in groupby(row):
            image += visual
            numbered += [image if visual else -1 for _ in run]
        expected.append(numbered)
    given = prompt([7] * len(rows), h=2)
    (layer,) = shown(given, vision=torch.tensor(rows))
    assert layer.slots.image.tolist() == [[row, row] for row in expected]
    assert layer.vision.tolist() == [[row, row] for row in rows]


class NeedsVision(KeyNorm):
    """A score that asks which tokens are visual."""

    def __call__(self, layer):
        return Scores(layer.vision.float())


def test_a_policy_that_needs_to_know_what_is_visual_gets_it_or_says_how_to_tell():
    given = prompt([6])
    policy = foveate.knorm(budget=2).but(score=NeedsVision())
    with pytest.raises(MissingModality, match="vision="):
        foveate.compress_tensors(policy, given.layers)
    vision = torch.tensor([[False, False, True, False, False, True]])
    (kept,) = foveate.compress_tensors(policy, given.layers, vision=vision)
    assert sets(kept, [0]) == [[[2, 5], [2, 5]]]


class Waiting(Uniform):
    """A budget that looks at what it is given."""

    seen: ClassVar[list] = []

    def __call__(self, scored, tokens):
        self.seen.extend(one.layer for one in scored)
        return super().__call__(scored, tokens)


@pytest.mark.parametrize("scope", ["layer", "model"])
def test_a_layer_whose_scores_are_known_shows_one_query_and_still_its_length(scope):
    given, budget = prompt([3, 5], h=2, g=2, d=4, depth=3), Waiting(amount=2)
    object.__setattr__(budget, "scope", scope)
    Waiting.seen.clear()
    compressed(foveate.snapkv(budget=2, window=2, kernel=1).but(budget=budget), given)
    for layer, (q, _, _) in zip(Waiting.seen, given.layers, strict=True):
        assert torch.equal(layer.q, q[:, :, -1:])
        held = layer.q.untyped_storage().nbytes()  # all of them if nobody waits for other layers
        assert held == (layer.q.nbytes if scope == "model" else q.nbytes)
        assert layer.lengths.tolist() == [3, 5]
        assert layer.column_sums is layer.window_sums is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "spec", ["knorm:budget=10", "snapkv:budget=10,window=4", "mixkv:budget=10,window=4"]
)
def test_tensors_that_need_gradients_are_compressed_as_others_are(spec):
    layers = prompt([40], h=2, g=2, d=8).layers
    policy = foveate.policy(spec)
    (plain,) = foveate.compress_tensors(policy, layers)
    (kept,) = foveate.compress_tensors(
        policy, [tuple(t.detach().clone().requires_grad_() for t in qkv) for qkv in layers]
    )
    assert torch.equal(kept.mask, plain.mask)
