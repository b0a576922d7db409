"""MixKV's statistics in two launches: norms and sums of directions, then diversity."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.kernels.launch import check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, tile
from foveate.ops.mix_statistics import MixStatistics

PART = 512  # slots whose directions are added up by one program


def mix_statistics(k: Tensor, v: Tensor, valid: Tensor | None = None) -> MixStatistics:
    """Compute the statistics; extra memory is a sum of directions per ``PART`` slots."""
    if valid is None:  # one expanded byte
        valid = k.new_ones((), dtype=torch.bool).expand(k.shape[:3])
    check("mix_statistics", k, v, others=(valid,))
    (b, h, n, d), e = k.shape, v.shape[3]
    real = valid.view(torch.uint8)
    block = rows(k if d >= e else v)
    part = max(PART, block)
    parts = triton.cdiv(n, part)
    of_slots = empty(3, b, h, n, like=k, dtype=torch.float32)
    key_norm, value_norm, diversity = of_slots.unbind()
    redundancy = empty(b, h, like=k, dtype=torch.float32)
    sums = empty(b * h, parts, d, like=k, dtype=torch.float32)
    counts = empty(b * h, parts, like=k, dtype=torch.float32)
    run(
        _sums_kernel,
        b * h * parts,
        k,
        strided(k),
        strided(v),
        strided(real),
        key_norm,
        value_norm,
        sums,
        counts,
        (h, n, d, e),
        D=power(d),
        E=power(e),
        PART=part,
        N=block,
    )
    run(
        _diversity_kernel,
        b * h * parts,
        k,
        strided(k),
        strided(real),
        sums,
        counts,
        diversity,
        redundancy,
        (h, n, d),
        D=power(d),
        PART=part,
        N=block,
    )
    return MixStatistics(of_slots, redundancy)


@triton.jit
@no_type_check
def _directions(k, real, slot, column, n, d):
    """Return directions [slots, D], zero without a token; the keys' norms; slots with a token."""
    keys = tile(k, slot, column, n, d).to(tl.float32)
    norm = tl.sqrt(tl.sum(keys * keys, 1))
    token = tl.load(real[0] + slot.to(tl.int64) * real[1], mask=slot < n, other=0) != 0
    direction = keys / tl.maximum(norm, 1e-12)[:, None]
    return tl.where(token[:, None], direction, 0.0), norm, token


@triton.jit
@no_type_check
def _sums_kernel(
    k,
    v,
    real,
    key_norm,
    value_norm,
    sums,
    counts,
    sizes,
    D: tl.constexpr,
    E: tl.constexpr,
    PART: tl.constexpr,
    N: tl.constexpr,
):
    """Process one part of one head."""
    h, n, d, e = sizes
    parts = tl.cdiv(n, PART)
    head = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    b, kv_head = head // h, head % h
    column, channel = tl.arange(0, D), tl.arange(0, E)
    k, v = of_head(k, b, kv_head), of_head(v, b, kv_head)
    real = real[0] + b * real[1] + kv_head * real[2], real[3]
    total = tl.zeros([D], tl.float32)
    count = tl.zeros([N], tl.float32)
    for start in range(part * PART, tl.minimum((part + 1) * PART, n), N):
        slot = start + tl.arange(0, N)
        direction, norm, token = _directions(k, real, slot, column, n, d)
        values = tile(v, slot, channel, n, e).to(tl.float32)
        tl.store(key_norm + head * n + slot, norm, mask=slot < n)
        length = tl.sqrt(tl.sum(values * values, 1))
        tl.store(value_norm + head * n + slot, length, mask=slot < n)
        total += tl.sum(direction, 0)
        count += token.to(tl.float32)
    tl.store(sums + (head * parts + part) * d + column, total, mask=column < d)
    tl.store(counts + head * parts + part, tl.sum(count, 0))


@triton.jit
@no_type_check
def _diversity_kernel(
    k,
    real,
    sums,
    counts,
    diversity,
    redundancy,
    sizes,
    D: tl.constexpr,
    PART: tl.constexpr,
    N: tl.constexpr,
):
    """Process one part of one head; the first part also writes the head's redundancy."""
    h, n, d = sizes
    parts = tl.cdiv(n, PART)
    head = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    b, kv_head = head // h, head % h
    column = tl.arange(0, D)
    mean = tl.zeros([D], tl.float32)
    tokens = tl.zeros([1], tl.float32)
    for i in range(parts):
        at = head * parts + i
        mean += tl.load(sums + at * d + column, mask=column < d, other=0.0)
        tokens += tl.load(counts + at)
    mean = mean / tokens
    if part == 0:
        r = (tokens * tl.sum(mean * mean, 0) - 1) / tl.maximum(tokens - 1, 1.0)
        tl.store(redundancy + head + tl.arange(0, 1), r)
    k = of_head(k, b, kv_head)
    real = real[0] + b * real[1] + kv_head * real[2], real[3]
    for start in range(part * PART, tl.minimum((part + 1) * PART, n), N):
        slot = start + tl.arange(0, N)
        direction, _, _ = _directions(k, real, slot, column, n, d)
        likeness = tl.sum(direction * mean[None, :], 1)
        tl.store(diversity + head * n + slot, -likeness, mask=slot < n)
