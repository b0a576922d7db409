"""Attention of a causal context and of questions that see it, at half the cost of a full mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

CONTEXT_FIRST = "context_first"


def context_first(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float | None = None,
    context: int = 0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute SDPA with ``mask`` [b, 1, n, n], whose first ``context`` rows are causal."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    n = context
    first = F.scaled_dot_product_attention(
        query[:, :, :n], key[:, :, :n], value[:, :, :n], is_causal=True, scale=scaling
    )
    then = F.scaled_dot_product_attention(
        query[:, :, n:], key, value, attn_mask=mask[:, :, n:].to(query.dtype), scale=scaling
    )
    return torch.cat([first, then], 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(CONTEXT_FIRST, context_first)
