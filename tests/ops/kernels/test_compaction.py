"""Kept pairs, copied bit for bit."""

import pytest
import torch

from foveate.ops.compaction import compaction
from tests.on_device import DEVICE

from .inputs import KINDS, Draw


def check(k, v, kept):
    b, h, n = kept.shape
    columns = torch.arange(b * h * n, device=DEVICE).view(b, n, h).transpose(1, 2)
    counts = kept.sum(-1)
    ours = compaction(k, v, columns, kept, counts, impl="triton")
    for x, y in zip(ours, compaction(k, v, columns, kept, counts), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_kept_slots_follow_each_other_for_every_type_and_head_size(dtype, d):
    draw = Draw(dtype)
    k, v = draw.tokens_first(2, 3, 90, d), draw.channels_first(2, 3, 90, d // 2)
    kept = draw.chance(0.4, 2, 90, 3).transpose(1, 2)
    kept[0, 1], kept[1, 2] = False, True
    check(k, v, kept)


@pytest.mark.parametrize("kept", [1, 700], ids=["same in every head", "all"])
def test_heads_of_one_length_and_whole_heads_too(kept):
    draw = Draw(seed=1)
    k = draw.tokens_first(1, 2, 700, 16)
    check(k, k, (torch.arange(700, device=DEVICE) < kept).expand(1, 2, 700))


def test_slots_far_from_the_start_are_counted_right():
    draw = Draw(seed=2)
    k = draw.normal(1, 1, 4500, 4)
    check(k, k, draw.chance(0.5, 1, 1, 4500))


def test_nothing_kept_is_nothing_copied():
    k = Draw().normal(1, 2, 20, 16)
    check(k, k, torch.zeros(1, 2, 20, dtype=torch.bool, device=DEVICE))
