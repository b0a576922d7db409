"""Memory that captured CUDA graphs read: it holds what it is given, and stays where it is."""

import torch

from foveate.vllm.plans.gap import Buffers


def given(rows, start=0):
    table = torch.arange(start, start + 6 * rows, dtype=torch.int32).view(rows, 6)
    return table, torch.arange(start, start + rows, dtype=torch.int32)


def test_what_is_held_is_what_was_given():
    buffers = Buffers(8)
    for rows in (3, 8, 1):
        table, lengths = given(rows, start=rows)
        held = buffers.fill(table, lengths)
        assert torch.equal(held[0], table)
        assert torch.equal(held[1], lengths)
        assert (held[0].dtype, held[1].dtype) == (torch.int32, torch.int32)


def test_every_pass_finds_it_at_the_same_address():
    buffers = Buffers(8)
    captured = buffers.fill(*given(8))
    for rows in (1, 5, 8):
        held = buffers.fill(*given(rows, start=100))
        assert [t.data_ptr() for t in held] == [t.data_ptr() for t in captured]
        assert torch.equal(captured[0][:rows], given(rows, start=100)[0])
        assert torch.equal(captured[1][:rows], given(rows, start=100)[1])


def test_it_is_vllms_memory_that_is_copied_from():
    table, lengths = given(2)
    held = Buffers(4).fill(table, lengths)
    table.fill_(-1)
    lengths.fill_(-1)
    assert bool((held[0] >= 0).all())
    assert bool((held[1] >= 0).all())
