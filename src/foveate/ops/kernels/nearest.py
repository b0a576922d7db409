"""Nearest kept slots: for a fixed block of slots, a running arg-max over the kept keys."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.kernels.launch import check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, product, tile
from foveate.ops.nearest import Nearest, listed


def nearest_by_cosine(k: Tensor, kept: Tensor) -> Nearest:
    """Find the nearest kept slots; extra memory is the list of kept slots."""
    check("nearest_by_cosine", k, others=(kept,))
    b, h, n, d = k.shape
    index, empties = listed(kept)
    counts = (~empties).sum(-1).to(torch.int32)
    slot = empty(b, h, n, like=k, dtype=torch.int64)
    cosine = empty(b, h, n, like=k, dtype=torch.float32)
    block = min(32, rows(k))  # tiles are converted to float32
    run(
        _nearest_kernel,
        b * h * triton.cdiv(n, block),
        k,
        strided(k),
        index.contiguous(),
        counts,
        slot,
        cosine,
        (h, n, index.shape[2], d),
        D=power(d),
        M=block,
        N=block,
    )
    return Nearest(slot, cosine)


@triton.jit
@no_type_check
def _unit(keys):
    keys = keys.to(tl.float32)
    norm = tl.sqrt(tl.sum(keys * keys, 1))
    return keys / tl.maximum(norm, 1e-12)[:, None]


@triton.jit
@no_type_check
def _nearest_kernel(
    k, index, counts, slots, cosines, sizes, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    """Process one block of slots of one head."""
    h, n, longest, d = sizes
    blocks = tl.cdiv(n, M)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    row = (tl.program_id(0) % blocks) * M + tl.arange(0, M)
    b, kv_head = head // h, head % h
    k = of_head(k, b, kv_head)
    index += head * longest
    column = tl.arange(0, D)
    own = _unit(tile(k, row, column, n, d))
    best = tl.full([M], -float("inf"), tl.float32)
    # a valid slot even if the head keeps nothing
    nearest = tl.zeros([M], tl.int64) + tl.load(index)
    count = tl.load(counts + head)
    for start in range(0, count, N):
        entry = start + tl.arange(0, N)
        target = tl.load(index + entry, mask=entry < count, other=n)
        keys = _unit(tile(k, target, column, n, d))
        cosine = product(own, tl.trans(keys))
        cosine = tl.where((entry < count)[None, :], cosine, -float("inf"))
        top = tl.max(cosine, 1)
        # targets ascend, so the least of those that reach the maximum is the earliest
        first = tl.min(tl.where(cosine == top[:, None], target[None, :], n), 1)
        closer = top > best
        best = tl.where(closer, top, best)
        nearest = tl.where(closer, first, nearest)
    tl.store(slots + head * n + row, nearest, mask=row < n)
    tl.store(cosines + head * n + row, best, mask=row < n)
