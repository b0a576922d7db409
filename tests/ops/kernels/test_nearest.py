"""The nearest kept slot, by a running arg-max."""

import pytest
import torch
from torch.testing import assert_close

from foveate.ops.nearest import nearest_by_cosine
from tests.on_device import DEVICE

from .inputs import KINDS, Draw


def check(k, kept):
    """Of two slots whose cosines are nearly the same, a GPU may take the other."""
    ours, expected = nearest_by_cosine(k, kept, impl="triton"), nearest_by_cosine(k, kept)
    assert_close(ours.cosine, expected.cosine, rtol=0.0, atol=1e-5)
    unit = torch.nn.functional.normalize(k.double(), dim=-1)
    others = (unit, (ours.slot, expected.slot), ours.slot != expected.slot)
    assert_close(*_cosines(*others), rtol=0.0, atol=1e-6)


def _cosines(unit, slots, where):
    """Of the keys at some slots with what stands in either."""
    for slot in slots:
        found = unit.gather(2, slot.clamp_min(0)[..., None].expand_as(unit))
        yield (unit * found).sum(-1)[where]


@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_slots_are_the_references_for_every_type_and_head_size(dtype, d):
    """A head that keeps nothing among them."""
    draw = Draw(dtype)
    kept = draw.chance(0.6, 2, 2, 110)
    kept[1, 0] = False
    check(draw.tokens_first(2, 2, 110, d), kept)


def test_of_equal_cosines_the_earlier_slot_is_taken_within_and_across_blocks():
    """Keys along a few axes, of lengths that divide exactly, so that cosines are 0, 1 and -1."""
    draw = Draw(seed=1)
    axis = torch.randint(0, 3, (1, 3, 150), generator=draw.generator)
    length = 2.0 ** torch.randint(-2, 3, axis.shape, generator=draw.generator)
    axis, length = axis.to(DEVICE), length.to(DEVICE)
    k = torch.nn.functional.one_hot(axis, 16) * length[..., None]
    k[:, :, 7] = 0.0
    kept = draw.chance(0.8, *axis.shape)
    ours, expected = nearest_by_cosine(k, kept, impl="triton"), nearest_by_cosine(k, kept)
    assert torch.equal(ours.slot, expected.slot)
    check(k, kept)


def test_one_slot_kept_is_everyones():
    k = Draw(seed=2).channels_first(1, 1, 70, 20)
    check(k, (torch.arange(70, device=DEVICE) == 66).expand(1, 1, 70))
