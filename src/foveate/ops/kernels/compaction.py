"""Compaction in one launch: a program counts the kept slots before its block, then copies it."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.compaction import Compacted, starts_of
from foveate.ops.kernels.launch import check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, tile

WIDE = 2048  # slots counted at a time


def compaction(k: Tensor, v: Tensor, columns: Tensor, kept: Tensor, counts: Tensor) -> Compacted:
    """Copy the kept slots bit by bit."""
    check("compaction", k, v, others=(columns, kept, counts))
    (b, h, n, d), e = k.shape, v.shape[3]
    starts = starts_of(counts)
    total = int(starts[-1])
    flat_k, flat_v = empty(total, d, like=k), empty(total, e, like=v)
    flat_columns = empty(total, like=k, dtype=torch.int32)
    mask = kept.view(torch.uint8)
    block = rows(k if d >= e else v)
    run(
        _copy_kernel,
        b * h * triton.cdiv(n, block),
        k,
        strided(k),
        strided(v),
        strided(columns),
        strided(mask),
        starts,
        flat_k,
        flat_v,
        flat_columns,
        (h, n, d, e),
        D=power(d),
        E=power(e),
        N=block,
        WIDE=WIDE,
    )
    return Compacted(flat_k, flat_v, flat_columns)


@triton.jit
@no_type_check
def _copy_kernel(
    k,
    v,
    columns,
    mask,
    starts,
    flat_k,
    flat_v,
    flat_columns,
    sizes,
    D: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Copy one block of slots of one head."""
    h, n, d, e = sizes
    blocks = tl.cdiv(n, N)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    begin = (tl.program_id(0) % blocks) * N
    b, kv_head = head // h, head % h
    mask, mask_n = mask[0] + b * mask[1] + kv_head * mask[2], mask[3]
    before = tl.zeros([WIDE], tl.int32)
    for start in range(0, begin, WIDE):
        slot = start + tl.arange(0, WIDE)
        stays = tl.load(mask + slot.to(tl.int64) * mask_n, mask=slot < begin, other=0) != 0
        before += stays.to(tl.int32)
    slot = begin + tl.arange(0, N)
    far = slot.to(tl.int64)
    stays = tl.load(mask + far * mask_n, mask=slot < n, other=0) != 0
    index = tl.sum(before, 0) + tl.cumsum(stays.to(tl.int32), 0) - 1
    to = tl.load(starts + head) + index
    column, channel = tl.arange(0, D), tl.arange(0, E)
    # tile() does not read slots beyond the end, so dropped ones are moved there
    taken = tl.where(stays, slot, n)
    keys = tile(of_head(k, b, kv_head), taken, column, n, d)
    values = tile(of_head(v, b, kv_head), taken, channel, n, e)
    copied = stays[:, None]
    tl.store(flat_k + to[:, None] * d + column[None, :], keys, mask=copied & (column < d)[None, :])
    tl.store(
        flat_v + to[:, None] * e + channel[None, :], values, mask=copied & (channel < e)[None, :]
    )
    at = columns[0] + b * columns[1] + kv_head * columns[2] + far * columns[3]
    number = tl.load(at, mask=stays, other=0)
    tl.store(flat_columns + to, number.to(tl.int32), mask=stays)
