"""MixKV's statistics of the keys, against its equations written out over all pairs of keys."""

import torch
from torch.testing import assert_close

from foveate.ops.mix_statistics import mix_statistics


def padded(rows, heads, slots, width):
    """Keys, values and which slots hold a token: row 0 all, the others fewer, at the end."""
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(rows, heads, slots, width, generator=generator) for _ in range(2))
    starts = 3 * torch.arange(rows)[:, None, None]
    return k + 1, v, (torch.arange(slots) >= starts).expand(rows, heads, slots)


def test_they_are_those_of_the_directions_of_all_pairs():
    k, v, valid = padded(3, 2, 17, 8)
    found = mix_statistics(k, v, valid, impl="reference")
    assert_close(found.key_norm, k.norm(dim=-1))
    assert_close(found.value_norm, v.norm(dim=-1))
    for row in range(3):
        for head in range(2):
            mine = valid[row, head]
            some = k[row, head, mine].double()
            directions = some / some.norm(dim=-1, keepdim=True)
            t, mean = len(some), directions.mean(0)
            cosines = directions @ directions.T
            redundancy = (cosines.sum() - cosines.trace()) / (t * (t - 1))
            assert_close(found.diversity[row, head, mine].double(), -(directions @ mean))
            assert_close(found.redundancy[row, head].double(), redundancy)
            assert found.diversity[row, head, ~mine].abs().sum() == 0


def test_what_padding_holds_counts_nowhere():
    k, v, valid = padded(2, 2, 9, 4)
    expected = mix_statistics(k, v, valid, impl="reference")
    k = k.masked_fill(~valid[..., None], torch.nan)
    found = mix_statistics(k, v, valid, impl="reference")
    assert torch.equal(found.diversity, expected.diversity)
    assert torch.equal(found.redundancy, expected.redundancy)


def test_without_a_mask_all_slots_hold_a_token_however_the_keys_lie_in_memory():
    k, v, _ = padded(2, 3, 9, 4)
    everything = torch.ones(2, 3, 9, dtype=torch.bool)
    tokens_first = k.transpose(1, 2).contiguous().transpose(1, 2)
    for keys in (k, tokens_first):
        found = mix_statistics(keys, v, impl="reference")
        for one, other in zip(found, mix_statistics(k, v, everything), strict=True):
            assert_close(one, other)


def test_a_key_of_zeros_has_no_direction():
    k, v, valid = padded(1, 1, 5, 4)
    k[0, 0, 2] = 0
    assert mix_statistics(k, v, valid, impl="reference").diversity[0, 0, 2] == 0
