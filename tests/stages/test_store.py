"""Quantised pairs, against lists, a literal reading of KIVI, and the authors' codes."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from torch.testing import assert_close

import foveate
from foveate.cache.pairs import QuantisedPairs
from foveate.errors import InvalidBudget, InvalidParameter, MissingModality
from foveate.methods.kivi import Kivi, KiviOfVisual
from tests.core.lean import lean
from tests.core.test_storage import Storage, as_tensors, bytes_held, new_tokens, random_pairs


def literal(numbers, bits):
    """A group that is quantised and read back, one number at a time."""
    least, most = min(numbers), max(numbers)
    if least == most:
        return list(numbers)
    step = (most - least) / (2**bits - 1)
    return [least + min(2**bits - 1, max(0, round((x - least) / step))) * step for x in numbers]


def by_channel(x, old, bits, group):
    """The first ``old`` of [n][d] numbers, groups of tokens read back channel by channel."""
    for start in range(0, old, group):
        rows = range(start, min(start + group, old))
        for channel in range(len(x[0]) if x else 0):
            for row, y in zip(rows, literal([x[r][channel] for r in rows], bits), strict=True):
                x[row][channel] = y


def literal_head(k, v, bits, group, residual, values="token"):
    """The keys and values [n][d] of one head, all but the last ``residual`` read back."""
    k, v = k.tolist(), v.tolist()
    old = max(0, len(k) - residual)
    by_channel(k, old, bits, group)
    if values == "channel":
        by_channel(v, old, bits, group)
        return k, v
    for row in range(old):
        starts = [*range(0, len(v[row]), group), len(v[row])]
        v[row] = [x for a, z in pairwise(starts) for x in literal(v[row][a:z], bits)]
    return k, v


def heads_of(pairs):
    """The keys and values of every head, in order."""
    padded = pairs.padded()
    held = (padded.columns >= 0).flatten(0, 1)
    return [
        (k[m], v[m])
        for k, v, m in zip(padded.k.flatten(0, 1), padded.v.flatten(0, 1), held, strict=True)
    ]


@settings(lean, max_examples=60)
@given(
    counts=st.lists(st.lists(st.integers(0, 20), min_size=2, max_size=2), min_size=1, max_size=2),
    bits=st.sampled_from([8, 4, 2, 1]),
    group=st.integers(1, 7),
    residual=st.integers(0, 9),
    values=st.sampled_from(["token", "channel"]),
)
def test_quantised_pairs_are_read_back_as_a_literal_reading_of_kivi_says(
    counts, bits, group, residual, values
):
    pairs = random_pairs(counts)
    held = Kivi(bits=bits, group=group, residual=residual, values=values)(pairs)
    assert held.columns.tolist() == pairs.columns.tolist()
    assert held.counts.tolist() == counts
    for (k, v), (quantised_k, quantised_v) in zip(heads_of(pairs), heads_of(held), strict=True):
        expected = literal_head(k, v, bits, group, residual, values)
        assert_close(quantised_k, torch.tensor(expected[0]).view_as(k), atol=2e-6, rtol=1e-5)
        assert_close(quantised_v, torch.tensor(expected[1]).view_as(v), atol=2e-6, rtol=1e-5)


@settings(lean, max_examples=40)
@given(
    counts=st.lists(st.lists(st.integers(0, 20), min_size=2, max_size=2), min_size=1, max_size=2),
    bits=st.sampled_from([4, 2, 1]),
    values=st.sampled_from(["token", "channel"]),
    text=st.sampled_from([16, 8]),
    data=st.data(),
)
def test_visual_tokens_and_text_are_each_read_back_in_their_own_bits(
    counts, bits, values, text, data
):
    pairs = random_pairs(counts)
    columns = pairs.columns
    visual = torch.rand(len(counts), 40, generator=torch.Generator().manual_seed(3)) < 0.6
    store = KiviOfVisual(bits=bits, group=5, residual=3, values=values, text=text)
    held = store.of_modality(pairs, visual)
    assert torch.equal(held.columns, columns)
    assert held.nbytes == bytes_held(held)
    of_heads = [c[c >= 0] for c in columns.flatten(0, 1)]
    for i, ((k, v), (own_k, own_v)) in enumerate(zip(heads_of(pairs), heads_of(held), strict=True)):
        seen = visual[i // 2][of_heads[i]]
        k, v = k.clone(), v.clone()
        for chosen, width, left in ((seen, bits, 0), (~seen, text, 3)):
            if width < 16:  # text is laid out as KIVI's: its values by token
                along = values if chosen is seen else "token"
                some = literal_head(k[chosen], v[chosen], width, 5, left, along)
                k[chosen] = torch.tensor(some[0]).view_as(k[chosen])
                v[chosen] = torch.tensor(some[1]).view_as(v[chosen])
        assert_close(own_k, k, atol=2e-6, rtol=1e-5)
        assert_close(own_v, v, atol=2e-6, rtol=1e-5)


class QuantisedStorage(Storage):
    """In groups of one every number is exact, so the pairs still behave as lists do."""

    def store(self, residual):
        return Kivi(group=1, residual=residual)(self.pairs)

    @initialize(
        b=st.integers(1, 3),
        h=st.integers(1, 3),
        n=st.integers(1, 8),
        data=st.data(),
        ragged=st.booleans(),
        residual=st.integers(0, 5),
    )
    def begin(self, b, h, n, data, ragged, residual):
        Storage.begin(self, b, h, n, data, ragged)
        self.pairs = self.store(residual)

    @rule(drafted=st.integers(1, 6), data=st.data())
    def crop(self, drafted, data):
        """What came last can be taken back, whatever was quantised before it came."""
        tokens = new_tokens(len(self.model.rows), len(self.model.rows[0]), drafted)
        self.model.append(tokens)
        self.pairs.append(*as_tensors(tokens))
        count = data.draw(st.integers(0, drafted))
        assert self.pairs.crop(count)
        assert self.model.crop(count)

    @rule(data=st.data())
    def only(self, data):
        slots = self.pairs.columns
        if not slots.shape[2]:
            return
        kept = data.draw(st.lists(st.booleans(), min_size=slots.numel(), max_size=slots.numel()))
        kept = torch.tensor(kept, dtype=torch.bool).view_as(slots) & (slots >= 0)
        kept[..., -1] = True  # something stays
        kept &= slots >= 0
        self.pairs = self.pairs.only(kept)
        self.model.rows = [
            [
                [
                    pair
                    for pair, keep in zip(head, mask[len(mask) - len(head) :], strict=True)
                    if keep
                ]
                for head, mask in zip(heads, masks, strict=True)
            ]
            for heads, masks in zip(self.model.rows, kept.tolist(), strict=True)
        ]
        self.model.fixed = [[len(head) for head in heads] for heads in self.model.rows]


QuantisedStorage.TestCase.settings = settings(
    lean, max_examples=40, stateful_step_count=12, suppress_health_check=list(HealthCheck)
)


class TestQuantisedPairsInGroupsOfOneBehaveAsListsOfPairs(QuantisedStorage.TestCase):
    pass


class StorageByModality(QuantisedStorage):
    """Likewise where visual tokens and text are in codes of their own, and more are told of."""

    def store(self, residual):
        store = KiviOfVisual(group=1, residual=residual, text=8)
        return store.of_modality(self.pairs, self.visual(self.pairs))

    @rule()
    def see(self):
        self.pairs = self.pairs.see(self.visual(self.pairs))

    @staticmethod
    def visual(pairs):
        """Every third column, of those that have come."""
        columns = pairs.columns
        told = torch.arange(int(columns.max()) + 1) % 3 == 0
        return told.expand(len(columns), -1)


StorageByModality.TestCase.settings = QuantisedStorage.TestCase.settings


class TestPairsByModalityInGroupsOfOneBehaveAsListsOfPairs(StorageByModality.TestCase):
    pass


def test_pairs_that_stay_keep_their_codes():
    held = Kivi(bits=4, group=8, residual=2)(random_pairs([[17, 12]]))
    before = held.padded()
    kept = before.columns >= 0
    kept[0, 0, 4::3] = False
    after = held.only(kept)
    assert torch.equal(after.padded().k[after.columns >= 0], before.k[kept])
    assert torch.equal(after.padded().v[after.columns >= 0], before.v[kept])
    assert after.nbytes < held.nbytes


@pytest.mark.parametrize("residual", [0, 3])
def test_decoded_tokens_are_quantised_a_group_at_a_time(residual):
    held = Kivi(bits=8, group=4, residual=residual)(random_pairs([[9, 9]]))
    for _ in range(25):
        held.append(torch.randn(1, 2, 1, 3), torch.randn(1, 2, 1, 2))
        assert residual <= held.rest.longest <= residual + 4 or held.longest < residual + 4
    assert held.longest == 34
    assert int(held.body.counts.min()) >= 34 - residual - 4


def test_bytes_are_those_of_codes_and_scales_and_of_what_is_in_full_precision():
    """Two heads of 40 pairs with 16 channels each, in 4 bits; 8 in full precision."""
    k, v = torch.randn(1, 2, 40, 16).half(), torch.randn(1, 2, 40, 16).half()
    whole = foveate.cache.pairs.DensePairs(k, v)
    held = Kivi(bits=4, group=8, residual=8)(whole)
    coded = 2 * 32
    codes = coded * (8 + 8)
    scales = 2 * 2 * (2 * 4 * 16 + coded * 2)  # least and step, keys: 4 groups, values: 2
    listed = 2 * coded + 4 * 2 * 4 + 8 * 2  # columns in 16 bits, sizes of groups, counts
    rest = 2 * 8 * (2 * 16 * 2 + 4)
    assert held.nbytes == bytes_held(held) == codes + scales + listed + rest


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"bits": 3}, "bits=3"), ({"group": 0}, "group=0"), ({"residual": -1}, "residual=-1")],
)
def test_impossible_layouts_are_named(changes, named):
    with pytest.raises(InvalidParameter, match=named):
        foveate.policy("snapkv+kivi:budget=20%", store=Kivi(**changes))


def test_a_budget_in_bytes_that_codes_would_have_to_stay_within_is_refused():
    with pytest.raises(InvalidBudget, match="is not known beforehand"):
        foveate.policy("snapkv+kivi(bits=4):budget=64MB,when=over_budget")


def test_kivi_adds_to_any_method_and_prints_as_it_is_written():
    policy = foveate.policy("mixkv+prefixkv+kivi(bits=4,group=64):budget=20%")
    assert policy.store == Kivi(bits=4, group=64)
    assert foveate.policy(policy.spec) == policy
    by_stage = foveate.policy("mixkv+prefixkv:budget=20%,store=kivi(bits=4,group=64)")
    assert by_stage.store == policy.store
    assert math.isclose(float(by_stage.amount.value), 0.2)
    assert isinstance(policy.store(random_pairs([[8, 8]])), QuantisedPairs)


def test_bits_of_visual_tokens_are_a_store_of_their_own_and_know_what_they_cannot_do():
    policy = foveate.policy("snapkv+kivi(of=visual,bits=1,text=8):budget=20%")
    assert policy.store == KiviOfVisual(bits=1, text=8)
    assert foveate.policy(policy.spec) == policy
    with pytest.raises(MissingModality, match="KiviOfVisual"):
        policy.store(random_pairs([[8, 8]]))
    with pytest.raises(InvalidBudget, match="does not say how many"):
        foveate.policy("snapkv+kivi(of=visual):budget=64MB")
    with pytest.raises(InvalidParameter, match=r"text=8.*add of=visual"):
        foveate.kivi(text=8)
