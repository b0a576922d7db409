"""The prompt's attention with its column sums: one softmax for both, where the score needs them.

A second pass over all queries and keys would cost nearly as much as the attention itself. The
output differs from that of the stock attention by rounding (1e-6 in float32), so this is done only
for prompts that will be compressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.backends.hf.passes import prompt_lengths
from foveate.core.compress import bytes_of_pairs
from foveate.ops.choice import chosen
from foveate.ops.column_sums import attention_with_sums

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer


def attention(
    owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float
) -> Float[Tensor, "b m hq e"] | None:
    """The attention of a pass over a layer that holds everything so far; None where the stock one
    has to do it: no column sums needed, another device or type, a mask that is not causal.
    """
    if not (writes_out(owner, query) and owner.state.policy.reads_column_sums):
        return None
    if tokens_kept(owner, query, mask) is None:
        return None
    k, v = owner.padded()[:2]
    facts = owner.state.facts(mask, (query.shape[0], query.shape[2], owner.seen), query.device)
    out, owner.sums = attention_with_sums(query, k, v, scale, facts.pads.tolist())
    return out.to(query.dtype).transpose(1, 2)


def writes_out(owner: FoveateLayer, query: Tensor) -> bool:
    """Whether attention may be done here at all: in blocks of ours, which in float32 on a CPU are
    as fast as the stock attention, or by the kernels if they were chosen.
    """
    return (
        owner.armed
        and (in_blocks(query) or chosen() == "triton")
        and not (torch.is_grad_enabled() and query.requires_grad)
    )


def in_blocks(query: Tensor) -> bool:
    """Other devices have fast attention, and half precision is faster there as well."""
    return query.device.type == "cpu" and query.dtype == torch.float32


def tokens_kept(owner: FoveateLayer, query: Tensor, mask: Tensor | None) -> Int[Tensor, "b"] | None:
    """Each row's budget; None if all rows are kept whole, or the mask is not causal."""
    k, v = owner.padded()[:2]
    facts = owner.state.facts(mask, (query.shape[0], query.shape[2], owner.seen), query.device)
    lengths = prompt_lengths(owner, owner.seen - facts.pads)
    tokens = owner.state.policy.tokens(lengths, bytes_of_pairs(k, v) * owner.state.depth)
    return tokens if facts.causal and not bool((tokens >= lengths).all()) else None
