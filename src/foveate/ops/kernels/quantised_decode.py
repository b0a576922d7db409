"""Quantised decoding: chunks of codes, then ragged decoding's chunks and its joining launch.

A tile of codes is read, unpacked and rescaled where it is used: only codes, minima and steps are
read from memory.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.kernels.launch import LOG2E, check, power, run, strided
from foveate.ops.kernels.ragged_decode import (
    Parts,
    Tail,
    attend,
    chunk_size,
    joined,
    room,
    store_part,
    weighed,
)
from foveate.ops.kernels.tiles import of_head, product, tile
from foveate.ops.quantised_decode import FlatCodes
from foveate.ops.ragged_decode import FlatPairs


def quantised_decode(
    q: Tensor,
    coded: FlatCodes,
    rest: FlatPairs,
    tail_k: Tensor,
    tail_v: Tensor,
    scale: float,
    n: float = 0.0,
) -> Tensor:
    """Attend to codes and pairs. Decoded numbers are rounded to their dtype, as elsewhere."""
    scales = (coded.k_least, coded.k_step, coded.v_least, coded.v_step)
    check(
        "quantised_decode",
        q,
        rest.k,
        rest.v,
        tail_k,
        tail_v,
        *scales,
        others=(coded.k, coded.v, coded.group, coded.starts, rest.starts),
    )
    tail = Tail(tail_k, tail_v)
    chunk = chunk_size(len(coded.k) + len(rest.k), tail)
    first = -(-coded.longest // chunk)
    parts = room(q, tail, first - (-rest.longest // chunk) - (-tail_k.shape[2] // chunk))
    _attend_codes(parts, first, q, coded, tail, scale, chunk)
    attend(parts, first, q, rest, tail, scale, chunk)
    return joined(parts, q, n)


def _attend_codes(
    parts: Parts, early: int, q: Tensor, coded: FlatCodes, tail: Tail, scale: float, chunk: int
) -> None:
    """Fill the first ``early`` parts."""
    (b, hq, _, d), (h, _, e) = q.shape, tail.v.shape[1:]
    tensors = [x.contiguous() for x in coded[:8]]
    run(
        _codes_kernel,
        b * h * early,
        q,
        strided(q.view(b, h, hq // h, d)),
        *tensors,
        *parts,
        (h, hq // h, d, e),
        (coded.k.shape[1], coded.v.shape[1], coded.v_least.shape[1]),
        early,
        parts.tops.shape[1],
        chunk,
        scale * LOG2E,
        BITS=coded.bits,
        CHANNELS=coded.channels,
        G=power(hq // h),
        D=power(d),
        E=power(e),
        N=16,
    )


@triton.jit
@no_type_check
def _unpacked(codes, at, valid, width, SIZE: tl.constexpr, BITS: tl.constexpr):
    """Return [pairs, SIZE] codes as float32; the first column is in the lowest bits."""
    byte = tl.arange(0, SIZE * BITS // 8)
    inside = valid[:, None] & (byte < width)[None, :]
    packed = tl.load(codes + at[:, None] * width + byte[None, :], mask=inside, other=0)
    if BITS == 8:
        numbers = packed
    elif BITS == 4:
        numbers = tl.interleave(packed & 15, packed >> 4)
    elif BITS == 2:
        even = tl.interleave(packed & 3, (packed >> 4) & 3)
        odd = tl.interleave((packed >> 2) & 3, packed >> 6)
        numbers = tl.interleave(even, odd)
    else:
        fours = tl.interleave(packed & 1, (packed >> 4) & 1)
        even = tl.interleave(fours, tl.interleave((packed >> 2) & 1, (packed >> 6) & 1))
        fours = tl.interleave((packed >> 1) & 1, (packed >> 5) & 1)
        odd = tl.interleave(fours, tl.interleave((packed >> 3) & 1, packed >> 7))
        numbers = tl.interleave(even, odd)
    return numbers.to(tl.float32)


@triton.jit
@no_type_check
def _scaled(numbers, least, step, at, inside):
    """Decode numbers to the dtype of their scales; zero outside."""
    low = tl.load(least + at, mask=inside, other=0.0)
    high = tl.load(step + at, mask=inside, other=0.0)
    return (low.to(tl.float32) + numbers * high.to(tl.float32)).to(low.dtype)


@triton.jit(do_not_specialize=["early", "total_chunks"])
@no_type_check
def _codes_kernel(
    q,
    k,
    k_least,
    k_step,
    group,
    v,
    v_least,
    v_step,
    starts,
    mixed,
    tops,
    totals,
    sizes,
    widths,
    early,
    total_chunks,
    chunk,
    scale,
    BITS: tl.constexpr,
    CHANNELS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
):
    """Process one chunk of one KV head's codes."""
    h, g, d, e = sizes
    k_width, v_width, v_groups = widths
    head = (tl.program_id(0) // early).to(tl.int64)
    index = tl.program_id(0) % early
    b, kv_head = head // h, head % h
    member, column, channel = tl.arange(0, G), tl.arange(0, D), tl.arange(0, E)
    queries = tile(of_head(q, b, kv_head), member, column, g, d)
    first = tl.load(starts + head)
    length = tl.load(starts + head + 1) - first
    begin = tl.minimum(index * chunk, length).to(tl.int32)
    end = tl.minimum((index + 1) * chunk, length).to(tl.int32)
    top = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    out = tl.zeros([G, E], tl.float32)
    for start in range(begin, end, N):
        pair = start + tl.arange(0, N)
        valid = pair < end
        at = first + pair
        owner = tl.load(group + at, mask=valid, other=0).to(tl.int64)
        codes = _unpacked(k, at, valid, k_width, D, BITS)
        inside = valid[:, None] & (column < d)[None, :]
        keys = _scaled(codes, k_least, k_step, owner[:, None] * d + column[None, :], inside)
        logits = product(queries, tl.trans(keys)) * scale
        logits = tl.where(valid[None, :], logits, -float("inf"))
        weights, shrunk, top, total = weighed(logits, top, total)
        codes = _unpacked(v, at, valid, v_width, E, BITS)
        inside = valid[:, None] & (channel < e)[None, :]
        scale_index = at[:, None] * v_groups + (channel // CHANNELS)[None, :]
        values = _scaled(codes, v_least, v_step, scale_index, inside)
        out = out * shrunk + product(weights.to(values.dtype), values)
    line = (head * g + member) * total_chunks + index
    store_part(mixed, tops, totals, line, g, e, top, total, out)
