"""Keys without their zero channels behave as lists of pairs, and take the bytes that they say."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from foveate.cache.pairs import DensePairs, NarrowPairs, store
from foveate.methods.think import ZeroChannels
from tests.core.lean import lean
from tests.core.test_storage import Storage, bytes_held, random_pairs


def without_channels(pairs, early):
    """The pairs with a channel less in the early ones of each head: its own."""
    k, v, columns = pairs.padded()
    heads = torch.arange(k.shape[0] * k.shape[1]).view(k.shape[:2])
    gone = torch.nn.functional.one_hot(heads % k.shape[3], k.shape[3]).bool()
    k = k.masked_fill(gone[:, :, None] & early[..., None], 0.0)
    return store(k, v, columns, columns >= 0, pairs.next_column)


def early(pairs, residual):
    columns = pairs.columns
    return (columns >= 0) & (torch.arange(columns.shape[2]) < columns.shape[2] - residual)


class NarrowStorage(Storage):
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
        some = early(self.pairs, residual)
        self.pairs = ZeroChannels(residual=residual)(without_channels(self.pairs, some))
        assert isinstance(self.pairs, NarrowPairs) == bool(some.any())
        for row, heads in enumerate(self.model.rows):
            for head, held in enumerate(heads):
                for _, token in held[: max(0, len(held) - residual)]:
                    token.k[(row * h + head) % len(token.k)] = 0.0


NarrowStorage.TestCase.settings = settings(
    lean, max_examples=40, stateful_step_count=12, suppress_health_check=list(HealthCheck)
)


class TestNarrowPairsBehaveAsListsOfPairs(NarrowStorage.TestCase):
    pass


def test_bytes_are_those_of_the_channels_that_are_left():
    """Two heads of 40 pairs with 16 channels each in half precision, 6 of them zero in 32."""
    k, v = torch.randn(1, 2, 40, 16).half(), torch.randn(1, 2, 40, 16).half()
    k[:, 0, :32, 3:9] = 0
    k[:, 1, :32, 10:] = 0
    held = ZeroChannels(residual=8)(DensePairs(k, v))
    keys, values, listed = 2 * (32 * 10 + 8 * 16) * 2, 2 * 40 * 16 * 2, 2 * 40 * 4
    assert held.nbytes == bytes_held(held) == keys + values + listed + 2 * 10 * 2
    padded = held.padded()
    assert torch.equal(padded.k, k)
    assert torch.equal(padded.v, v)


@pytest.mark.parametrize("counts", [[[9, 9]], [[9, 4]]])
def test_pairs_that_lack_no_channel_are_held_as_they_are(counts):
    pairs = random_pairs(counts)
    assert ZeroChannels(residual=2)(pairs) is pairs
    thinner = without_channels(pairs, early(pairs, 2))
    assert ZeroChannels(residual=20)(thinner) is thinner


@pytest.mark.parametrize("counts", [[[9, 9], [9, 9]], [[9, 4], [1, 12]]])
def test_tensors_of_a_file_make_the_same_pairs(counts):
    pairs = random_pairs(counts)
    held = ZeroChannels(residual=3)(without_channels(pairs, early(pairs, 3)))
    again = ZeroChannels(residual=3).restored(held.tensors(), held.first)
    for a, b in zip(held.padded(), again.padded(), strict=True):
        assert torch.equal(a, b)
    assert again.nbytes == held.nbytes
