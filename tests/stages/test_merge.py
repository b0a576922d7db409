"""What the kept pairs take over from the others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.cache.layer import Scored, Scores
from foveate.errors import InvalidParameter, MissingModality
from foveate.policies.protocols import NoMerge
from foveate.policies.spec import make_stage
from foveate.stages.merge import MergeNearest
from tests.core.lean import lean
from tests.literal import lookm, prefixkv

from .layers import changed, layer_of, random_layer

MERGED = {"rtol": 0, "atol": 1e-5, "check_dtype": False}
HOW = ["averaged", "pivotal", "weighted"]


def scored(layer):
    """The scores do not matter: what is kept has been decided."""
    values = layer.pos.float()
    return Scored(layer, Scores(values), values, layer.lengths)


def some(layer, density, seed=0):
    """Real slots, of each head as many as it happens."""
    drawn = torch.rand(layer.pos.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn < density) & layer.valid


def alone(layer, row, head):
    """Keys and values of one head's real slots, [1, t, d], as the literals take them."""
    real = layer.valid[row, head]
    return layer.k[row, head, real][None], layer.v[row, head, real][None]


def assert_as_literal(layer, kept, merged, literal):
    """Each head by itself: ``literal(k, v, positions)`` of the heads that keep some slot."""
    for row, head in torch.cartesian_prod(*map(torch.arange, kept.shape[:2])).tolist():
        mask = kept[row, head]
        if not bool(mask.any()):
            continue
        k, v = alone(layer, row, head)
        positions = mask[layer.valid[row, head]].nonzero()[:, 0].tolist()
        for ours, theirs in zip(merged, literal(k, v, positions), strict=True):
            assert_close(ours[row, head, mask], theirs[0], **MERGED)


cases = {
    "lengths": st.lists(st.integers(1, 12), min_size=1, max_size=2),
    "density": st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    "seed": st.integers(0, 99),
}


@lean
@given(**cases, how=st.sampled_from(HOW))
def test_the_nearest_key_takes_over_whatever_each_head_keeps(lengths, density, seed, how):
    layer = random_layer([*lengths, 12], seed=seed)
    kept = some(layer, density, seed)
    merged = MergeNearest(how=how)(scored(layer), kept)
    assert_as_literal(layer, kept, merged, lambda k, v, at: lookm.merge(k, v, [at], how))


@lean
@given(**cases)
def test_the_nearest_position_takes_over_with_equal_weights(lengths, density, seed):
    layer = random_layer([*lengths, 12], seed=seed)
    kept = some(layer, density, seed)
    merged = MergeNearest(by="position", how="averaged")(scored(layer), kept)
    assert_as_literal(
        layer,
        kept,
        merged,
        lambda k, v, at: [prefixkv.merge(x, at, "position", k) for x in (k, v)],
    )


@lean
@given(**cases, how=st.sampled_from(HOW))
def test_within_a_modality_each_kind_merges_as_if_it_were_alone(lengths, density, seed, how):
    """Every head's visual tokens by themselves, and its text; a kind that keeps none goes."""
    layer = random_layer([*lengths, 12], seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    vision = torch.rand(layer.pos.shape[0], layer.pos.shape[2], generator=generator) < 0.6
    layer = changed(layer, image=torch.where(vision, 0, -1)[:, None].expand_as(layer.pos))
    kept = some(layer, density, seed)
    merged = MergeNearest(how=how, within="modality")(scored(layer), kept)
    for row, head in torch.cartesian_prod(*map(torch.arange, kept.shape[:2])).tolist():
        for kind in (vision[row], ~vision[row]):
            own = layer.valid[row, head] & kind
            mask = kept[row, head] & kind
            if not bool(mask.any()):
                continue
            at = mask[own].nonzero()[:, 0].tolist()
            pairs = (t[row, head, own][None] for t in (layer.k, layer.v))
            for ours, theirs in zip(merged, lookm.merge(*pairs, [at], how), strict=True):
                assert_close(ours[row, head, mask], theirs[0], **MERGED)


def test_merging_within_a_modality_needs_to_know_it():
    layer = random_layer([9])
    with pytest.raises(MissingModality):
        MergeNearest(within="modality")(scored(layer), some(layer, 0.5))


@lean
@given(**cases, how=st.sampled_from(HOW), count=st.integers(1, 11))
def test_the_filter_goes_by_the_places_in_the_heads_lists(lengths, density, seed, how, count):
    """Lists of one length here, as the release has them: each head keeps as many as the others."""
    layer = random_layer([12, *lengths], h=3, seed=seed)
    order = torch.rand(layer.pos.shape, generator=torch.Generator().manual_seed(seed))
    order = order.masked_fill(~layer.valid, 2.0).argsort(-1).argsort(-1)
    kept = (order < count) & layer.valid
    merged = MergeNearest(how=how, similarity_filter=True)(scored(layer), kept)
    for row, length in enumerate([12, *lengths]):
        if length <= count:
            continue
        pad = 12 - length
        at = [head.nonzero()[:, 0].tolist() for head in kept[row, :, pad:]]
        expected = lookm.merge(layer.k[row, :, pad:], layer.v[row, :, pad:], at, how, True)
        for ours, theirs in zip(merged, expected, strict=True):
            for head in range(3):
                assert_close(ours[row, head, kept[row, head]], theirs[head], **MERGED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", HOW)
def test_a_pair_that_nothing_merges_into_stays_bit_identical(how, dtype):
    """Keys on two axes: the first two slots take all, the third none."""
    k = torch.tensor([[1.0, 0.1], [0.1, 1.0], [-1.0, -1.0], [0.9, 0.2], [0.3, 0.8]])
    k = k.expand(1, 2, 5, 2).to(dtype)
    v = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    kept = torch.tensor([True, True, True, False, False]).expand(1, 2, 5)
    merged = MergeNearest(how=how)(scored(layer_of(k, k, v)), kept)
    for ours, given_ in zip(merged, (k, v), strict=True):
        assert torch.equal(ours[:, :, 2], given_[:, :, 2])
        assert not torch.equal(ours[:, :, :2], given_[:, :, :2])


@pytest.mark.parametrize("stage", [*(MergeNearest(how=how) for how in HOW), NoMerge()])
def test_where_nothing_is_left_out_keys_and_values_are_those_given(stage):
    layer = random_layer([9, 6], seed=1)
    k, v = stage(scored(layer), layer.valid)
    assert k is layer.k
    assert v is layer.v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "stage",
    [
        *(MergeNearest(how=how) for how in HOW),
        MergeNearest(by="position"),
        MergeNearest(how="weighted", similarity_filter=True),
    ],
)
def test_half_precision_is_merged_in_float32_and_rounded_once(stage, dtype):
    full = random_layer([40, 30], d=8, seed=2)
    half = layer_of(full.q.to(dtype), full.k.to(dtype), full.v.to(dtype), pads=[0, 10])
    same = layer_of(half.q.float(), half.k.float(), half.v.float(), pads=[0, 10])
    kept = some(full, 0.3)
    for ours, theirs in zip(stage(scored(half), kept), stage(scored(same), kept), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs.to(dtype))


@pytest.mark.parametrize("how", HOW)
def test_a_head_that_keeps_nothing_has_no_say_in_what_passes_the_filter(how):
    layer = random_layer([15], h=3, seed=6)
    kept = some(layer, 0.4)
    kept[:, 1] = False
    k, v = MergeNearest(how=how, similarity_filter=True)(scored(layer), kept)
    others = layer_of(layer.q[:, :2], layer.k[:, [0, 2]], layer.v[:, [0, 2]])
    without = MergeNearest(how=how, similarity_filter=True)(scored(others), kept[:, [0, 2]])
    for ours, theirs in zip((k, v), without, strict=True):
        assert torch.equal(ours[:, [0, 2]], theirs)


def test_values_take_the_targets_and_weights_of_the_keys():
    k = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, 1.0]])[None, None]
    v = torch.tensor([[10.0], [20.0], [30.0], [40.0]])[None, None]
    kept = torch.tensor([True, True, False, False])[None, None]
    cosines = [1 / math.sqrt(2), 3 / math.sqrt(10)]  # both to the first, the first one by a tie
    for how, expected in {
        "averaged": (10 + 30 + 40) / 3,
        "pivotal": (10 + (30 + 10) / 2 + (40 + 10) / 2) / 3,
        "weighted": (10 + 30 * cosines[0] + 40 * cosines[1]) / 3,
    }.items():
        _, merged = MergeNearest(how=how)(scored(layer_of(k, k, v)), kept)
        assert_close(merged[0, 0, :2, 0], torch.tensor([expected, 20.0]))


def test_heads_of_keys_and_values_may_differ_in_size():
    layer = random_layer([10], seed=3)
    v = torch.randn(1, 2, 10, 7, generator=torch.Generator().manual_seed(3))
    layer = layer_of(layer.q, layer.k, v)
    kept = some(layer, 0.4)
    merged = MergeNearest(how="averaged")(scored(layer), kept)
    assert merged[1].shape == v.shape
    assert_as_literal(layer, kept, merged, lambda k, v, at: lookm.merge(k, v, [at], "averaged"))


@pytest.mark.parametrize("stage", [MergeNearest(how="averaged"), MergeNearest(by="position")])
def test_padding_merges_into_nothing(stage):
    layer = random_layer([12, 7], seed=4)
    kept = some(layer, 0.4)
    merged = stage(scored(layer), kept)
    for x in (layer.k, layer.v):
        x.masked_fill_(~layer.valid[..., None], 1e6)
    for ours, theirs in zip(merged, stage(scored(layer), kept), strict=True):
        assert torch.equal(ours[kept], theirs[kept])


def test_the_inputs_are_left_as_they_are():
    layer = random_layer([12], seed=5)
    kept = some(layer, 0.4)
    copies = layer.k.clone(), layer.v.clone(), kept.clone()
    MergeNearest(how="weighted", similarity_filter=True)(scored(layer), kept)
    assert all(torch.equal(*pair) for pair in zip((layer.k, layer.v, kept), copies, strict=True))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"by": "value"}, "by='value'"),
        ({"how": "mean"}, "how='mean'"),
        ({"similarity_filter": "yes"}, "similarity_filter='yes'"),
        ({"by": "position", "how": "weighted"}, "by='position' has no similarity"),
        ({"by": "position", "similarity_filter": True}, "by='position' has no similarity"),
    ],
)
def test_what_it_cannot_do_is_refused_by_value(arguments, text):
    with pytest.raises(InvalidParameter) as refused:
        make_stage("merge_nearest", arguments)
    assert text in str(refused.value)
