"""KIVI's codes, scales and what is read back, against the authors' own."""

import torch
from torch.testing import assert_close

from foveate.ops.affine_codes import decode, encode, extremes, step_of

from .vectors import load


def test_codes_and_scales_are_those_of_the_authors():
    golden, arguments = load("kivi_2bit")
    x, bits, group = golden["x"], arguments["bits"], arguments["group_size"]
    k = x[0].flatten(0, 1)  # heads in a row: their groups of tokens do not mix
    owner = torch.arange(len(k)) // group
    least, most = extremes(k, owner, len(k) // group)
    step = step_of(least, most, bits)
    assert_close(least, golden["k_mn"].flatten(0, 3), rtol=0, atol=0)
    assert_close(step, golden["k_scale"].flatten(0, 3))
    codes = encode(k, least[owner], step[owner], bits)
    of_theirs = unpacked(golden["k_code"], bits, dim=2).flatten(0, 2)
    assert torch.equal(_codes(codes, 32, bits), of_theirs)
    assert_close(decode(codes, least[owner], step[owner], bits), golden["k_deq"].flatten(0, 2))

    least, most = (t.T for t in extremes(k.T, torch.arange(32) // group, 1))
    step = step_of(least, most, bits)
    codes = encode(k, least.expand_as(k), step.expand_as(k), bits)
    assert torch.equal(_codes(codes, 32, bits), unpacked(golden["v_code"], bits, 3).flatten(0, 2))
    read = decode(codes, least.expand_as(k), step.expand_as(k), bits)
    assert_close(read, golden["v_deq"].flatten(0, 2))


def unpacked(words, bits, dim):
    """The authors' 32-bit words, whose lowest bits are the first code along ``dim``."""
    shifts = torch.arange(0, 32, bits)
    parts = (words.long().unsqueeze(-1) >> shifts) & (2**bits - 1)
    return parts.movedim(-1, dim + 1).flatten(dim, dim + 1)


def _codes(packed, width, bits):
    """Codes, from the bytes that hold them: they are the steps from a least of 0."""
    ones = torch.ones(len(packed), width)
    return decode(packed, torch.zeros_like(ones), ones, bits).long()
