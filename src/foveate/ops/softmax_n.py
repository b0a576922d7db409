"""Softmax-n in plain torch, in float32, stable for logits of any size."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def softmax_n(logits: Float[Tensor, "*x n"], n: float) -> Float[Tensor, "*x n"]:
    """Compute exp(x_i) / (n + sum_j exp(x_j)) over the last dimension, for any n >= 0.

    It equals a softmax with one more logit, log n, whose weight is dropped; so it is a softmax
    times sigmoid(logsumexp(x) - log n).

    Source: CSP (arXiv:2412.04652), eqs. 7 and 10.
    """
    weights = logits.float().softmax(-1)
    return weights * share(logits.float().logsumexp(-1, keepdim=True), n) if n else weights


def attention_n(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    n: float,
    visible: Bool[Tensor, "b #h m n"] | None = None,
) -> Float[Tensor, "b hq m e"]:
    """Compute attention with softmax-n; without a mask every query sees every slot.

    Softmax in float32; the products in the inputs' dtype. A query that sees no slot gets zeros.
    """
    b, hq, m, d = q.shape
    h, g = k.shape[1], hq // k.shape[1]
    grouped = (q * scale).reshape(b, h, g * m, d)
    logits = (grouped @ k.transpose(2, 3)).float().view(b, h, g, m, -1)
    if visible is not None:
        logits = logits.masked_fill(~visible[:, :, None], -torch.inf)
    weights = softmax_n(logits, n)
    if visible is not None:  # a softmax over nothing is NaN
        weights = weights.masked_fill(~visible.any(-1)[:, :, None, :, None], 0.0)
    out = weights.to(v.dtype).view(b, h, g * m, -1) @ v
    return out.view(b, hq, m, -1)


def share(totals: Float[Tensor, "*x"], n: float) -> Float[Tensor, "*x"]:
    """Return the factor between softmax and softmax-n, from the logsumexp of the logits.

    It is zero if no logit is finite.
    """
    return (totals - math.log(n)).sigmoid() if n else torch.ones_like(totals)
