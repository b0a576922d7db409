"""The nearest kept slot, against a search through all of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.ops import nearest as reference
from foveate.ops.nearest import nearest_by_cosine, nearest_by_position
from tests.core.lean import lean


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def best(closeness):
    """Of (slot, how near) the slot that is nearest, of equally near ones the first."""
    return max(closeness, key=lambda pair: (pair[1], -pair[0]))


def literal_cosine(k, kept):
    """[b][h][n] of (slot, cosine); None in a head that keeps nothing."""
    unit = torch.nn.functional.normalize(k.double(), dim=-1)
    return [
        [
            [
                best([(j, float(key @ keys[j])) for j in mask.nonzero()[:, 0].tolist()])
                if bool(mask.any())
                else None
                for key in keys
            ]
            for keys, mask in zip(row, masks, strict=True)
        ]
        for row, masks in zip(unit, kept, strict=True)
    ]


def assert_nearest(found, expected, shape):
    for b in range(shape[0]):
        for h in range(shape[1]):
            for i in range(shape[2]):
                if expected[b][h][i] is not None:
                    slot, cosine = expected[b][h][i]
                    assert int(found.slot[b, h, i]) == slot
                    assert float(found.cosine[b, h, i]) == pytest.approx(cosine, abs=1e-5)


shapes = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(2, 5))
densities = st.sampled_from([0.0, 0.2, 0.6, 1.0])


@lean
@given(shape=shapes, density=densities, seed=st.integers(0, 99))
def test_the_kept_slot_of_the_largest_cosine_is_found_whatever_each_head_keeps(
    shape, density, seed
):
    k = torch.randn(shape, generator=seeded(seed))
    kept = torch.rand(shape[:3], generator=seeded(seed + 1)) < density
    assert_nearest(nearest_by_cosine(k, kept), literal_cosine(k, kept), shape)


@lean
@given(shape=shapes, density=densities, seed=st.integers(0, 99))
def test_of_equal_cosines_the_earlier_kept_slot_is_taken(shape, density, seed):
    """Keys along the axes, of lengths that divide exactly, so that cosines are 0, 1 and -1."""
    axis = torch.randint(0, shape[3], shape[:3], generator=seeded(seed))
    length = 2.0 ** torch.randint(-2, 3, shape[:3], generator=seeded(seed + 1))
    sign = torch.randint(0, 2, shape[:3], generator=seeded(seed + 2)) * 2 - 1
    k = torch.nn.functional.one_hot(axis, shape[3]) * (length * sign)[..., None]
    kept = torch.rand(shape[:3], generator=seeded(seed + 3)) < density
    assert_nearest(nearest_by_cosine(k, kept), literal_cosine(k, kept), shape)


def test_the_length_of_a_key_does_not_matter():
    k = torch.randn(1, 2, 12, 4, generator=seeded(0))
    kept = torch.arange(12).remainder(3).eq(0).expand(1, 2, 12)
    longer = k * torch.rand(1, 2, 12, 1, generator=seeded(1)).add(0.1)
    assert torch.equal(nearest_by_cosine(k, kept).slot, nearest_by_cosine(longer, kept).slot)


def test_a_key_of_zeros_is_at_a_right_angle_to_all():
    k = torch.randn(1, 1, 5, 3, generator=seeded(2))
    k[0, 0, 3] = 0.0
    kept = torch.tensor([[[False, True, True, False, False]]])
    found = nearest_by_cosine(k, kept)
    assert int(found.slot[0, 0, 3]) == 1
    assert float(found.cosine[0, 0, 3]) == 0.0


@pytest.mark.parametrize("nearest", ["cosine", "position"])
def test_a_head_that_keeps_nothing_has_slots_that_exist_and_leaves_the_others_alone(nearest):
    k = torch.randn(2, 2, 7, 3, generator=seeded(3))
    kept = torch.rand(2, 2, 7, generator=seeded(4)) < 0.5
    kept[0, 1] = False
    pos = torch.arange(7).expand(2, 2, 7)
    found = nearest_by_cosine(k, kept) if nearest == "cosine" else nearest_by_position(pos, kept)
    assert bool(((found.slot >= 0) & (found.slot < 7)).all())
    others = torch.tensor([[0, 0], [1, 0], [1, 1]])
    alone = [
        nearest_by_cosine(k[b : b + 1, h : h + 1], kept[b : b + 1, h : h + 1])
        if nearest == "cosine"
        else nearest_by_position(pos[b : b + 1, h : h + 1], kept[b : b + 1, h : h + 1])
        for b, h in others.tolist()
    ]
    for (b, h), one in zip(others.tolist(), alone, strict=True):
        assert torch.equal(found.slot[b, h], one.slot[0, 0])


def test_nothing_kept_at_all_is_no_error():
    k, kept = torch.ones(1, 2, 4, 3), torch.zeros(1, 2, 4, dtype=torch.bool)
    assert nearest_by_cosine(k, kept).slot.shape == (1, 2, 4)
    assert nearest_by_position(torch.arange(4).expand(1, 2, 4), kept).slot.shape == (1, 2, 4)


@pytest.mark.parametrize("limit", [0, 1, 64, 200, 1000])
def test_blocks_of_slots_find_what_one_block_finds(monkeypatch, limit):
    k = torch.randn(2, 3, 37, 5, generator=seeded(5))
    kept = torch.rand(2, 3, 37, generator=seeded(6)) < 0.4
    kept[1, 2] = False
    whole = nearest_by_cosine(k, kept)
    monkeypatch.setattr(reference, "BYTES", limit)
    blocks = nearest_by_cosine(k, kept)
    assert torch.equal(blocks.slot, whole.slot)
    assert_close(blocks.cosine, whole.cosine)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_compared_in_float32(dtype):
    k = torch.randn(1, 2, 60, 8, generator=seeded(7)).to(dtype)
    kept = torch.rand(1, 2, 60, generator=seeded(8)) < 0.4
    found, full = nearest_by_cosine(k, kept), nearest_by_cosine(k.float(), kept)
    assert torch.equal(found.slot, full.slot)
    assert found.cosine.dtype == torch.float32
    assert torch.equal(found.cosine, full.cosine)


def literal_position(pos, kept):
    slots = [i for i, stays in enumerate(kept) if stays]
    return [best([(j, -abs(pos[i] - pos[j])) for j in slots])[0] for i in range(len(pos))]


@lean
@given(
    heads=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=9, max_size=9),
        min_size=1,
        max_size=4,
    ),
    pads=st.integers(0, 8),
)
def test_the_kept_slot_of_the_nearest_token_is_found_with_gaps_and_padding(heads, pads):
    """Gaps of up to 4 tokens; of two kept tokens at the same distance the earlier is taken."""
    gaps = torch.tensor([[gap for gap, _ in head] for head in heads])
    pos = gaps.cumsum(-1) - gaps[:, : pads + 1].sum(-1, keepdim=True)
    pos[:, :pads] = torch.arange(-pads, 0)
    kept = torch.tensor([[stays for _, stays in head] for head in heads]) & (pos >= 0)
    found = nearest_by_position(pos[None], kept[None])
    for head in range(len(heads)):
        if bool(kept[head].any()):
            expected = literal_position(pos[head].tolist(), kept[head].tolist())
            assert found.slot[0, head, pads:].tolist() == expected[pads:]
            assert found.slot[0, head].tolist() == expected


def test_by_position_there_is_no_cosine():
    pos = torch.arange(5).expand(1, 1, 5)
    found = nearest_by_position(pos, pos == 2)
    assert found.slot.tolist() == [[[2] * 5]]
    assert all(map(math.isnan, found.cosine.flatten().tolist()))


def test_the_inputs_are_left_as_they_are():
    k, kept = torch.randn(1, 2, 6, 3), torch.rand(1, 2, 6) < 0.5
    pos = torch.arange(6).expand(1, 2, 6).clone()
    copies = k.clone(), kept.clone(), pos.clone()
    nearest_by_cosine(k, kept)
    nearest_by_position(pos, kept)
    assert all(torch.equal(a, b) for a, b in zip((k, kept, pos), copies, strict=True))
