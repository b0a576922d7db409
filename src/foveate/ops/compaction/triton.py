"""One launch: a program counts what is kept before its slots, then copies its own."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.ops.compaction.reference import Compacted
from foveate.ops.heads import starts_of
from foveate.ops.launch import check, empty, power, rows, run, tile

WIDE = 2048  # slots counted at a time


def compaction(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    columns: Int[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Compacted:
    """Bit for bit what is in the kept slots."""
    check("compaction", k, v, beside=(columns, kept, counts))
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
        k,
        v,
        columns,
        mask,
        starts,
        flat_k,
        flat_v,
        flat_columns,
        *k.stride(),
        *v.stride(),
        *columns.stride(),
        *mask.stride(),
        h,
        n,
        d,
        e,
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
    k_b,
    k_h,
    k_n,
    k_d,
    v_b,
    v_h,
    v_n,
    v_e,
    columns_b,
    columns_h,
    columns_n,
    mask_b,
    mask_h,
    mask_n,
    h,
    n,
    d,
    e,
    D: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One block of slots of one head."""
    blocks = tl.cdiv(n, N)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    begin = (tl.program_id(0) % blocks) * N
    b, of = head // h, head % h
    mask += b * mask_b + of * mask_h
    before = tl.zeros([WIDE], tl.int32)
    for start in range(0, begin, WIDE):
        slot = start + tl.arange(0, WIDE)
        stays = tl.load(mask + slot.to(tl.int64) * mask_n, mask=slot < begin, other=0) != 0
        before += stays.to(tl.int32)
    slot = begin + tl.arange(0, N)
    far = slot.to(tl.int64)
    stays = tl.load(mask + far * mask_n, mask=slot < n, other=0) != 0
    place = tl.sum(before, 0) + tl.cumsum(stays.to(tl.int32), 0) - 1
    to = tl.load(starts + head) + place
    column, channel = tl.arange(0, D), tl.arange(0, E)
    # a slot that goes is read as one beyond the end: not at all
    taken = tl.where(stays, slot, n)
    keys = tile(k + b * k_b + of * k_h, taken, column, k_n, k_d, n, d)
    values = tile(v + b * v_b + of * v_h, taken, channel, v_n, v_e, n, e)
    some = stays[:, None]
    tl.store(flat_k + to[:, None] * d + column[None, :], keys, mask=some & (column < d)[None, :])
    tl.store(
        flat_v + to[:, None] * e + channel[None, :], values, mask=some & (channel < e)[None, :]
    )
    number = tl.load(
        columns + b * columns_b + of * columns_h + far * columns_n, mask=stays, other=0
    )
    tl.store(flat_columns + to, number.to(tl.int32), mask=stays)
