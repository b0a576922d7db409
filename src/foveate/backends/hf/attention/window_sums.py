"""The prompt's attention with what its last queries pay in all, where the score needs that.

A long observation window (a tenth of the prompt in CSP and DAVID) costs as much again as the same
rows of the attention; so these rows are done once, for the output and for the score, with the
weights that the score has declared. The output differs from that of the stock attention by rounding
(1e-6 in float32), so this is done only for prompts that will be compressed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.backends.hf.attention.attended import Attend, Attended
from foveate.core.layer import WindowSums, WindowWeights
from foveate.ops.column_sums import attention_with_counted_sums


def with_window_sums(
    base: Attend,
    query: Float[Tensor, "b hq n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    mask: Tensor | None,
    scale: float,
    pads: list[int],
    weights: WindowWeights,
) -> Attended:
    """Causal attention of a prompt in one pass: the early queries' by the model's own ``base``, the
    window's here.
    """
    w = weights.counts.shape[-1]
    early = None if mask is None else mask[:, :, :-w, :-w]
    before, _ = base(query[:, :, :-w], k[:, :, :-w], v[:, :, :-w], early)
    late, sums = attention_with_counted_sums(
        query[:, :, -w:], k, v, weights.counts, scale, weights.n, pads
    )
    output = torch.cat([before, late.to(before.dtype).transpose(1, 2)], dim=1)
    return Attended(output, window_sums=WindowSums(weights, sums))
