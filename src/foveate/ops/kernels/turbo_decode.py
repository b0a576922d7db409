"""Decoding over TurboQuant's codes: chunks of codes, then ragged decoding's chunks and its join.

The query is rotated before the launch and the outputs of codes after it, so that the kernel only
looks levels up: of keys and values nothing but codes and norms is read from memory.
"""

from __future__ import annotations

import math
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
from foveate.ops.ragged_decode import FlatPairs
from foveate.ops.turbo_codes import bytes_of, codebook, projection, rotation
from foveate.ops.turbo_decode import TurboCodes


def turbo_decode(
    q: Tensor,
    coded: TurboCodes,
    rest: FlatPairs,
    tail_k: Tensor,
    tail_v: Tensor,
    scale: float,
    n: float = 0.0,
) -> Tensor:
    """Attend to codes and pairs; levels and rotations are in float32."""
    norms = (coded.k_norms, coded.v_norms)
    others = (coded.k, coded.v, coded.starts, rest.starts)
    check("turbo_decode", q, rest.k, rest.v, tail_k, tail_v, *norms, others=others)
    tail = Tail(tail_k, tail_v)
    chunk = chunk_size(len(coded.k) + len(rest.k), tail)
    first = -(-coded.longest // chunk)
    parts = room(q, tail, first - (-rest.longest // chunk) - (-tail_k.shape[2] // chunk))
    if first:
        _attend_codes(parts, first, q, coded, tail, scale, chunk)
        of_codes = parts.mixed[:, :first]
        # parts of heads that are shorter are not written, and are not read either
        of_codes.copy_(of_codes @ rotation(tail_v.shape[3], q.device))
    attend(parts, first, q, rest, tail, scale, chunk)
    return joined(parts, q, n)


def _attend_codes(
    parts: Parts, early: int, q: Tensor, coded: TurboCodes, tail: Tail, scale: float, chunk: int
) -> None:
    """Fill the first ``early`` parts, with outputs in rotated coordinates."""
    (b, hq, _, d), (h, _, e) = q.shape, tail.v.shape[1:]
    sketch, queries = coded.k_norms.shape[1] == 2, q.float().view(b, h, hq // h, d)
    rotated = queries @ rotation(d, q.device).T
    sketched = queries @ projection(d, q.device).T if sketch else rotated
    key_bits = coded.bits - sketch
    run(
        _turbo_kernel,
        b * h * early,
        q,  # of whose device the launch is
        strided(rotated),
        strided(sketched),
        coded.k.contiguous(),
        coded.k_norms.contiguous(),
        coded.v.contiguous(),
        coded.v_norms.contiguous(),
        codebook(d, key_bits, q.device),
        codebook(e, coded.bits, q.device),
        coded.starts,
        *parts,
        (h, hq // h, d, e),
        (coded.k.shape[1], coded.v.shape[1], bytes_of(d, key_bits)),
        early,
        parts.tops.shape[1],
        chunk,
        scale * LOG2E,
        math.sqrt(math.pi / 2) / d,
        SKETCH=sketch,
        KEY_BITS=key_bits,
        BITS=coded.bits,
        G=power(hq // h),
        D=power(d),
        E=power(e),
        N=16,
    )


@triton.jit
@no_type_check
def _numbers(codes, at, some, first, width, column, size, BITS: tl.constexpr):
    """Return [pairs, columns] numbers of ``BITS`` bits from byte ``first`` of a pair's ``width``.

    A number of 3 bits may begin in one byte and end in the next.
    """
    bit = column * BITS
    byte = first + bit // 8
    inside = some[:, None] & (column < size)[None, :]
    line = codes + at[:, None] * width
    low = tl.load(line + byte[None, :], mask=inside, other=0).to(tl.int32)
    both = inside & (byte + 1 < width)[None, :]
    high = tl.load(line + byte[None, :] + 1, mask=both, other=0).to(tl.int32)
    return ((low | high << 8) >> (bit % 8)[None, :]) & ((1 << BITS) - 1)


@triton.jit
@no_type_check
def _levels(table, codes, at, some, width, column, size, BITS: tl.constexpr):
    """Return [pairs, columns] levels, zero outside."""
    numbers = _numbers(codes, at, some, 0, width, column, size, BITS)
    inside = some[:, None] & (column < size)[None, :]
    return tl.load(table + numbers, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["early", "total_chunks"])
@no_type_check
def _turbo_kernel(
    q,
    sketched,
    k,
    k_norms,
    v,
    v_norms,
    k_table,
    v_table,
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
    sketch_scale,
    SKETCH: tl.constexpr,
    KEY_BITS: tl.constexpr,
    BITS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
):
    """Process one chunk of one KV head's codes."""
    h, g, d, e = sizes
    k_width, v_width, sign_byte = widths
    head = (tl.program_id(0) // early).to(tl.int64)
    index = tl.program_id(0) % early
    b, of = head // h, head % h
    member, column, channel = tl.arange(0, G), tl.arange(0, D), tl.arange(0, E)
    queries = tile(of_head(q, b, of), member, column, g, d)
    projected = tile(of_head(sketched, b, of), member, column, g, d)
    first = tl.load(starts + head)
    length = tl.load(starts + head + 1) - first
    begin = tl.minimum(index * chunk, length).to(tl.int32)
    end = tl.minimum((index + 1) * chunk, length).to(tl.int32)
    top = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    out = tl.zeros([G, E], tl.float32)
    for start in range(begin, end, N):
        pair = start + tl.arange(0, N)
        some = pair < end
        at = first + pair
        logits = product(
            queries, tl.trans(_levels(k_table, k, at, some, k_width, column, d, KEY_BITS))
        )
        if SKETCH:
            bits = _numbers(k, at, some, sign_byte, k_width, column, d, 1)
            inside = some[:, None] & (column < d)[None, :]
            signs = tl.where(inside, (2 * bits - 1).to(tl.float32), 0.0)
            error = tl.load(k_norms + 2 * at + 1, mask=some, other=0.0).to(tl.float32)
            logits += product(projected, tl.trans(signs)) * (error * sketch_scale)[None, :]
            norm = tl.load(k_norms + 2 * at, mask=some, other=0.0).to(tl.float32)
        else:
            norm = tl.load(k_norms + at, mask=some, other=0.0).to(tl.float32)
        logits = tl.where(some[None, :], logits * norm[None, :] * scale, -float("inf"))
        weights, shrunk, top, total = weighed(logits, top, total)
        levels = _levels(v_table, v, at, some, v_width, channel, e, BITS)
        norm = tl.load(v_norms + at, mask=some, other=0.0).to(tl.float32)
        out = out * shrunk + product(weights * norm[None, :], levels)
    line = (head * g + member) * total_chunks + index
    store_part(mixed, tops, totals, line, g, e, top, total, out)
