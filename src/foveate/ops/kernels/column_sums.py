"""Column sums in two passes: log-sum-exp of every query (and its output), then sums over queries.

The first is flash attention's running softmax (Dao, arXiv:2307.08691). The second recomputes each
weight as exp(logit - lse), with a fixed block of slots and a loop over all later queries. Products
of keys and queries are exact and added up in float32.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from foveate.ops.kernels.launch import LOG2E, check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, product, tile


def column_sums(
    q: Tensor, k: Tensor, scale: float, mask: Tensor | None = None, pads: list[int] | None = None
) -> Tensor:
    """Run the first pass without values, then the second."""
    check("column_sums", q, k, others=() if mask is None else (mask,))
    row_pads = _pads(q, pads)
    _, lse = _softmax(q, k, None, scale, mask, row_pads)
    return _sums(q, k, scale, mask, row_pads, lse)


def attention_with_sums(
    q: Tensor, k: Tensor, v: Tensor, scale: float, pads: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Run both passes. The weights are multiplied with the values in the values' dtype."""
    check("attention_with_sums", q, k, v)
    row_pads = _pads(q, pads)
    out, lse = _softmax(q, k, v, scale, None, row_pads)
    return out, _sums(q, k, scale, None, row_pads, lse)


def attention_with_counted_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Tensor,
    scale: float,
    n: float = 0.0,
    pads: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run both passes, the second with a larger log-sum-exp if n > 0.

    Softmax-n is a softmax with log n as one more logit.
    """
    check("attention_with_counted_sums", q, k, v, others=(counts,))
    row_pads = _pads(q, pads)
    out, lse = _softmax(q, k, v, scale, None, row_pads)
    if n:
        lse = torch.logaddexp2(lse, torch.full_like(lse, math.log2(n)))
    by_query_head = _sums(q, k, scale, None, row_pads, lse, counts.float())
    (b, h, slots), c = k.shape[:3], counts.shape[1]
    return out, by_query_head.view(b, h, -1, c, slots).sum(2)


def _pads(q: Tensor, pads: list[int] | None) -> Tensor:
    return torch.tensor(pads or [0] * q.shape[0], dtype=torch.int32, device=q.device)


def _softmax(
    q: Tensor, k: Tensor, v: Tensor | None, scale: float, mask: Tensor | None, pads: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs [b hq m e] and log2-sum-exp2 [b hq m].

    Outputs have no width without values. The log-sum-exp is +inf for queries that see nothing.
    """
    b, hq, m, d = q.shape
    h, n, e = k.shape[1], k.shape[2], 0 if v is None else v.shape[3]
    out = empty(b, hq, m, e, like=q, dtype=torch.float32)
    lse = empty(b, hq, m, like=q, dtype=torch.float32)
    seen = q if mask is None else mask.expand(b, h, m, n).view(torch.uint8)
    values = k if v is None else v
    block = rows(k if e <= d else values)
    run(
        _softmax_kernel,
        b * hq * triton.cdiv(m, block),
        q,
        strided(q),
        strided(k),
        strided(values),
        strided(seen),
        pads,
        out,
        lse,
        (hq, hq // h, m, n, d, e),
        scale * LOG2E,
        HAS_V=v is not None,
        HAS_MASK=mask is not None,
        D=power(d),
        E=power(e),
        M=block,
        N=block,
    )
    return out, lse


def _sums(
    q: Tensor,
    k: Tensor,
    scale: float,
    mask: Tensor | None,
    pads: Tensor,
    lse: Tensor,
    counts: Float[Tensor, "b c g m"] | None = None,
) -> Float[Tensor, "b hq *c n"]:
    """Return sums over all queries with equal weights, or ``c`` sums with weights ``counts``."""
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    c = 1 if counts is None else counts.shape[1]
    sums = empty(b, hq, c, n, like=q, dtype=torch.float32)
    counted = lse[:, :, None] if counts is None else counts.transpose(1, 2)
    seen = q if mask is None else mask.expand(b, h, m, n).view(torch.uint8)
    block = rows(k)
    run(
        _sums_kernel,
        b * hq * triton.cdiv(n, block),
        q,
        strided(q),
        strided(k),
        strided(seen),
        strided(counted),
        pads,
        lse,
        sums,
        (hq, hq // h, m, n, c, d),
        scale * LOG2E,
        HAS_MASK=mask is not None,
        COUNTED=counts is not None,
        C=power(c),
        D=power(d),
        M=block,
        N=block,
    )
    return sums[:, :, 0] if counts is None else sums


@triton.jit
@no_type_check
def _visible(seen, row, slot, m, n, HAS_MASK: tl.constexpr):
    """Return a [rows, slots] mask of the slots that each query attends to."""
    inside = (row < m)[:, None] & (slot < n)[None, :]
    if HAS_MASK:
        return tile(seen, row, slot, m, n) != 0
    return inside & (slot[None, :] <= (n - m + row)[:, None])


@triton.jit
@no_type_check
def _softmax_kernel(
    q,
    k,
    v,
    seen,
    pads,
    out,
    lse,
    sizes,
    scale,
    HAS_V: tl.constexpr,
    HAS_MASK: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Process one block of queries of one query head."""
    hq, g, m, n, d, e = sizes
    blocks = tl.cdiv(m, M)
    head = (tl.program_id(0) // blocks).to(tl.int64)  # counted through all rows
    block = tl.program_id(0) % blocks
    b, kv_head = head // hq, (head % hq) // g
    row, column, channel = block * M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, E)
    k, v, seen = of_head(k, b, kv_head), of_head(v, b, kv_head), of_head(seen, b, kv_head)
    pad = tl.load(pads + b)
    queries = tile(of_head(q, b, head % hq), row, column, m, d)
    top = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, E], tl.float32)
    end = n
    if not HAS_MASK:
        end = tl.minimum(n, n - m + (block + 1) * M)
    for start in range(pad, end, N):
        slot = start + tl.arange(0, N)
        keys = tile(k, slot, column, n, d)
        logits = product(queries, tl.trans(keys)) * scale
        visible = _visible(seen, row, slot, m, n, HAS_MASK)
        logits = tl.where(visible, logits, -float("inf"))
        new = tl.maximum(top, tl.max(logits, 1))
        level = tl.where(new == -float("inf"), 0.0, new)  # nothing seen so far
        weights = tl.exp2(logits - level[:, None])
        shrunk = tl.exp2(top - level)
        total = total * shrunk + tl.sum(weights, 1)
        if HAS_V:
            values = tile(v, slot, channel, n, e)
            added = product(weights.to(values.dtype), values)
            mixed = mixed * shrunk[:, None] + added
        top = new
    counts = (total > 0) & (row >= pad - (n - m))  # padding is no query
    total = tl.where(counts, total, 1.0)
    row_lse = tl.where(counts, top + tl.log2(total), float("inf"))
    tl.store(lse + head * m + row, row_lse, mask=row < m)
    if HAS_V:
        mixed = tl.where(counts[:, None], mixed / total[:, None], 0.0)
        at = (head * m + row)[:, None] * e + channel[None, :]
        tl.store(out + at, mixed, mask=(row < m)[:, None] & (channel < e)[None, :])


@triton.jit
@no_type_check
def _sums_kernel(
    q,
    k,
    seen,
    counts,
    pads,
    lse,
    sums,
    sizes,
    scale,
    HAS_MASK: tl.constexpr,
    COUNTED: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Process one block of slots of one query head."""
    hq, g, m, n, c, d = sizes
    blocks = tl.cdiv(n, N)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    b, kv_head = head // hq, (head % hq) // g
    slot, column = block * N + tl.arange(0, N), tl.arange(0, D)
    q, seen = of_head(q, b, head % hq), of_head(seen, b, kv_head)
    pad = tl.load(pads + b)
    keys = tile(of_head(k, b, kv_head), slot, column, n, d)
    of_sums = tl.arange(0, C)
    counts = of_head(counts, b, head % g)
    total = tl.zeros([C, N] if COUNTED else [N], tl.float32)
    begin = tl.maximum(0, pad - (n - m))
    if not HAS_MASK:
        begin = tl.maximum(begin, block * N - (n - m))  # earlier queries see none of these slots
    for start in range(begin, m, M):
        row = start + tl.arange(0, M)
        queries = tile(q, row, column, m, d)
        logits = product(queries, tl.trans(keys)) * scale
        level = tl.load(lse + head * m + row, mask=row < m, other=float("inf"))
        visible = _visible(seen, row, slot, m, n, HAS_MASK)
        visible &= (slot >= pad)[None, :]
        weights = tl.exp2(tl.where(visible, logits - level[:, None], -float("inf")))
        if COUNTED:
            total += product(tile(counts, of_sums, row, c, m), weights)
        else:
            total += tl.sum(weights, 0)
    if COUNTED:
        at = (head * c + of_sums)[:, None] * n + slot[None, :]
        tl.store(sums + at, total, mask=(of_sums < c)[:, None] & (slot < n)[None, :])
    else:
        tl.store(sums + head * n + slot, total, mask=slot < n)
