"""What the last queries pay, from blocks of slots."""

import pytest
import torch
from torch.testing import assert_close

from foveate.ops.window_attention import window_attention, window_sums
from tests.on_device import DEVICE

from .inputs import KINDS, Draw, lengths

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("n", [0.0, 1.5])
@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_probabilities_are_the_references_for_every_type_and_head_size(dtype, d, n):
    draw = Draw(dtype)
    q, slots = draw.tokens_first(2, 4, 5, d), 33 + lengths(dtype, d)[1]
    k, seen = draw.tokens_first(2, 2, slots, d), draw.chance(0.5, 2, 1, slots, 5).transpose(2, 3)
    seen[:, :, 2] = False
    ours = window_attention(q, k, seen, d**-0.5, n, impl="triton")
    assert_close(ours, window_attention(q, k, seen, d**-0.5, n), **CLOSE)


@pytest.mark.parametrize(("w", "n"), [(1, 1), (70, 130), (64, 64), (3, 1100)])
def test_probabilities_are_the_references_for_odd_lengths_and_masks_by_head(w, n):
    draw = Draw(seed=1)
    q, k = draw.channels_first(1, 4, w, 24), draw.channels_first(1, 2, n, 24)
    seen = draw.chance(0.7, 1, 2, w, n)
    ours = window_attention(q, k, seen, 0.5, impl="triton")
    assert_close(ours, window_attention(q, k, seen, 0.5), **CLOSE)


@pytest.mark.parametrize("last", [0, 1, 30, 129])
def test_a_mask_of_the_last_slots_says_that_those_before_are_seen(last):
    draw = Draw(seed=3)
    q, k = draw.channels_first(2, 4, 5, 24), draw.channels_first(2, 2, 130, 24)
    seen = draw.chance(0.5, 2, 1, 5, last)
    whole = torch.cat([torch.ones(2, 1, 5, 130 - last, dtype=torch.bool, device=DEVICE), seen], -1)
    ours = window_attention(q, k, seen, 0.5, impl="triton")
    assert_close(ours, window_attention(q, k, whole, 0.5), **CLOSE)


def test_logits_of_any_size_are_no_trouble():
    draw = Draw(seed=2)
    q, k = 60 * draw.normal(1, 2, 4, 16), 60 * draw.normal(1, 2, 70, 16)
    seen = torch.ones(1, 1, 4, 70, dtype=torch.bool, device=DEVICE)
    ours = window_attention(q, k, seen, 1.0, 1.0, impl="triton")
    exact = (q.double() @ k.double().transpose(2, 3)).softmax(-1)[:, :, None]
    assert_close(ours.double(), exact, rtol=0.0, atol=2e-3)


@pytest.mark.parametrize("n", [0.0, 1.5])
def test_sums_are_the_references(n):
    draw = Draw(seed=4)
    q, k = draw.tokens_first(2, 6, 5, 24), draw.tokens_first(2, 2, 97, 24)
    seen, counts = draw.chance(0.7, 2, 2, 5, 97), draw.normal(2, 4, 3, 5)
    ours = window_sums(q, k, seen, counts, 0.5, n, impl="triton")
    assert_close(ours, window_sums(q, k, seen, counts, 0.5, n), rtol=1e-4, atol=1e-5)
