"""The attention of one pass over what a layer holds: which of the ways computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.backends.hf import coded, summed, windowed
from foveate.backends.hf.masks import for_model, over_slots
from foveate.core.storage import DensePairs, RaggedPairs
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.softmax_n import attention_n

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer

Output = tuple[Tensor, Tensor | None]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Output]


def over_pairs(
    owner: FoveateLayer,
    base: Attend,
    query: Tensor,
    mask: Tensor | None,
    scale: float,
    summable: bool = False,
) -> Output:
    """Attention over a layer's pairs, by the model's own function ``base`` wherever it can do it.
    If ``summable``, it may leave behind what the score will read.
    """
    if (decoded := coded.attention(owner, query, mask, scale)) is not None:
        return decoded, None
    pairs, m = owner.pairs.opened(), query.shape[2]
    if isinstance(pairs, DensePairs) and not pairs.compressed and _plain(mask, m, owner.seen):
        if summable and (out := _written_out(owner, base, query, mask, scale)) is not None:
            return out, None
        return base(query, pairs.k, pairs.v, mask)
    n = owner.state.policy.attend.n if pairs.compressed else 0.0
    if m == 1 and _sees_all(owner, query, mask):
        if isinstance(pairs, RaggedPairs):
            out = ragged_decode(query, *pairs.parts, scale, n, starts=pairs.starts,
                                longest=pairs.longest_body)  # fmt: skip
            return out.transpose(1, 2), None
        if n:
            return attention_n(query, pairs.k, pairs.v, scale, n).transpose(1, 2), None
        return base(query, pairs.k, pairs.v, None)
    padded = pairs.padded()
    visible = over_slots(mask, padded.columns, owner.columns_of(query))
    return over_visible(base, query, padded.k, padded.v, visible, mask, scale, n)


def over_visible(
    base: Attend,
    query: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    visible: Bool[Tensor, "b #h m n"],
    mask: Tensor | None,
    scale: float,
    n: float,
) -> Output:
    """Attention over the visible slots alone. ``mask`` is the model's own and tells which kind
    ``base`` takes.
    """
    if n:
        seen = visible.expand(-1, k.shape[1], -1, -1)
        return attention_n(query, k, v, scale, n, seen).transpose(1, 2), None
    additive = mask.dtype if mask is not None and mask.dtype != torch.bool else None
    groups = 1 if visible.shape[1] == 1 else query.shape[1] // k.shape[1]
    return base(query, k, v, for_model(visible, groups, additive))


def _written_out(
    owner: FoveateLayer, base: Attend, query: Tensor, mask: Tensor | None, scale: float
) -> Tensor | None:
    """Attention that leaves behind what the score will read; None where the stock one is to."""
    out = summed.attention(owner, query, mask, scale)
    return windowed.attention(owner, base, query, mask, scale) if out is None else out


def _plain(mask: Tensor | None, m: int, seen: int) -> bool:
    """True where the model's own attention needs no mask of ours over all columns."""
    return mask is not None or m in (1, seen)


def _sees_all(owner: FoveateLayer, query: Tensor, mask: Tensor | None) -> bool:
    """Whether the last query sees everything that is held. A step that is being traced cannot look
    into a mask (up to 5.13 transformers makes one there): it goes by the mask, slot by slot.
    """
    if mask is not None and torch.compiler.is_compiling():
        return False
    return owner.state.facts(mask, (*query.shape[:3:2], owner.seen), query.device).open
