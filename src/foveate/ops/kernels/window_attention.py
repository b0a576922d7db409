"""Window attention in two launches: logits and softmax per block of slots, then per row.

A window has few queries and many slots, so slots are processed in parallel. The logits are stored
in the output, to base 2, until the second launch knows their sum.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.kernels.launch import LOG2E, check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, product, tile


def window_attention(q: Tensor, k: Tensor, visible: Tensor, scale: float, n: float = 0.0) -> Tensor:
    """Compute the attention. Products of queries and keys are exact, summed in float32."""
    check("window_attention", q, k, others=(visible,))
    (b, hq, w, d), (h, slots) = q.shape, k.shape[1:3]
    block, queries = rows(k), min(64, power(w))
    blocks = triton.cdiv(slots, block)
    out = empty(b, hq, w, slots, like=q, dtype=torch.float32)
    tops, totals = (empty(b * hq, w, blocks, like=q, dtype=torch.float32) for _ in range(2))
    before = slots - visible.shape[-1]
    seen = visible.expand(b, h, w, -1).view(torch.uint8)
    programs = b * hq * triton.cdiv(w, queries) * blocks
    run(
        _logits_kernel,
        programs,
        q,
        strided(q),
        strided(k),
        strided(seen),
        out,
        tops,
        totals,
        (hq, hq // h, w, slots, before, d),
        scale * LOG2E,
        D=power(d),
        W=queries,
        N=block,
    )
    run(
        _weights_kernel,
        b * hq * w * triton.cdiv(slots, WIDE),
        q,
        out,
        tops,
        totals,
        slots,
        blocks,
        math.log2(n) if n else -math.inf,
        BLOCKS=power(blocks),
        N=WIDE,
    )
    return out.view(b, h, hq // h, w, slots)


WIDE = 1024  # slots of one query that are divided together


@triton.jit
@no_type_check
def _logits_kernel(
    q, k, seen, out, tops, totals, sizes, scale, D: tl.constexpr, W: tl.constexpr, N: tl.constexpr
):
    """Process one block of queries of one query head, and one block of slots."""
    hq, g, w, n, before, d = sizes
    blocks = tl.cdiv(n, N)
    block = tl.program_id(0) % blocks
    above = tl.program_id(0) // blocks
    queries_of = tl.cdiv(w, W)
    head = (above // queries_of).to(tl.int64)
    b, kv_head = head // hq, (head % hq) // g
    row = (above % queries_of) * W + tl.arange(0, W)
    slot, column = block * N + tl.arange(0, N), tl.arange(0, D)
    queries = tile(of_head(q, b, head % hq), row, column, w, d)
    keys = tile(of_head(k, b, kv_head), slot, column, n, d)
    logits = product(queries, tl.trans(keys)) * scale
    inside = (row < w)[:, None] & (slot < n)[None, :]
    seen, seen_w, seen_n = of_head(seen, b, kv_head)
    at = row.to(tl.int64)[:, None] * seen_w + (slot - before).to(tl.int64)[None, :] * seen_n
    inside_before = inside & (slot >= before)[None, :]
    visible = tl.load(seen + at, mask=inside_before, other=1) != 0
    logits = tl.where(visible & inside, logits, -float("inf"))
    top = tl.max(logits, 1)
    level = tl.where(top == -float("inf"), 0.0, top)
    line = head * w + row
    tl.store(tops + line * blocks + block, top, mask=row < w)
    total = tl.sum(tl.exp2(logits - level[:, None]), 1)
    tl.store(totals + line * blocks + block, total, mask=row < w)
    tl.store(out + line[:, None] * n + slot[None, :], logits, mask=inside)


@triton.jit
@no_type_check
def _weights_kernel(out, tops, totals, n, blocks, log_n, BLOCKS: tl.constexpr, N: tl.constexpr):
    """Process some slots of one query; log n is one more logit, whose weight is dropped."""
    parts = tl.cdiv(n, N)
    line = (tl.program_id(0) // parts).to(tl.int64)
    slot = (tl.program_id(0) % parts) * N + tl.arange(0, N)
    block = tl.arange(0, BLOCKS)
    top = tl.load(tops + line * blocks + block, mask=block < blocks, other=-float("inf"))
    total = tl.load(totals + line * blocks + block, mask=block < blocks, other=0.0)
    best = tl.maximum(tl.max(top, 0), log_n)
    best = tl.where(best == -float("inf"), 0.0, best)  # nothing is seen
    total_of_all = tl.sum(total * tl.exp2(top - best), 0) + tl.exp2(log_n - best)
    logits = tl.load(out + line * n + slot, mask=slot < n, other=-float("inf"))
    weights = tl.exp2(logits - best) / tl.where(total_of_all > 0, total_of_all, 1.0)
    tl.store(out + line * n + slot, weights, mask=slot < n)
