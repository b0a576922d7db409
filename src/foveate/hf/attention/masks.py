"""Conversion of the model's mask over columns to a mask over the stored slots.

The model builds its mask inside its own forward pass. The first layer that attends examines it, and
later layers reuse the result as long as their mask is the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from foveate.cache.slots import Slots, once_for_heads
from foveate.cache.tokens import Images
from foveate.compression.tensors import left_padding
from foveate.errors import UnsupportedModel

BLOCK = 2**22
"""Entries of a mask that are compared at a time."""


class MaskFacts(NamedTuple):
    """Properties of one forward pass's mask, computed once for all layers.

    ``causal``: apart from padding, a query sees every column up to its own.
    ``open``: the last query sees every column that is not padding.
    """

    pads: Int[Tensor, "b"]
    causal: bool
    open: bool


@dataclass(eq=False)
class PassView:
    """One mask of one pass. ``own`` is the mask that the model's attention received, ``mask`` the
    same over queries and columns; ``shape`` counts rows, tokens of the pass, and tokens seen with
    it. ``pads`` (left padding) is None while the mask has to tell it. The first layer that needs
    them computes the other fields (:class:`foveate.hf.layer.state.CacheState`).
    """

    own: Any
    shape: tuple[int, int, int]
    mask: Tensor | None
    pads: Int[Tensor, "b"] | None
    device: torch.device
    facts: MaskFacts | None = None
    all_slots: tuple[Tensor, Slots] | None = None  # columns, and the slots of every column


def over_columns(mask: Any, b: int, m: int, n: int) -> Tensor | None:
    """Return the mask over queries and columns [b, 1, m, n], or None where every query sees all
    columns up to its own. ``mask`` may be such a mask, flash attention's [b, n] (nonzero for tokens
    that are not padding), or flex attention's block mask.

    Raises:
        UnsupportedModel: a mask of another kind.
    """
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 4):
        return mask
    if isinstance(mask, BlockMask):
        seen: Tensor = create_mask(mask.mask_mod, b, 1, m, n, device=mask.kv_num_blocks.device)
        return seen
    if not isinstance(mask, Tensor) or mask.shape != (b, n):
        raise UnsupportedModel(
            f"the attention mask is a {type(mask).__name__} of shape "
            f"{getattr(mask, 'shape', '?')}, which is no mask of {m} queries over {n} columns."
        )
    columns = torch.arange(n, device=mask.device)
    causal = columns <= columns[n - m :, None]
    return (causal & (mask != 0)[:, None])[:, None]


def as_bool(mask: Tensor) -> Bool[Tensor, "b 1 m n"]:
    """Convert a boolean or additive mask to a boolean one, True where a query sees a column.

    Raises:
        UnsupportedModel: a mask that differs between heads.
    """
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise UnsupportedModel(
            f"the attention mask has shape {tuple(mask.shape)}; only masks that all heads share, "
            "[batch, 1, queries, columns], can be followed through a compressed cache."
        )
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def of_queries(mask: Tensor, index: Int[Tensor, "b m"]) -> Bool[Tensor, "b 1 m n"]:
    """Return the mask rows of the queries at ``index``; of the first query where it is negative."""
    rows = as_bool(mask).expand(len(index), 1, -1, -1)
    return rows.gather(2, index.clamp_min(0)[:, None, :, None].expand(-1, -1, -1, rows.shape[3]))


def examine(
    mask: Tensor | None,
    pads: Int[Tensor, "b"] | None,
    shape: tuple[int, int, int],
    device: torch.device,
) -> MaskFacts:
    """Read the properties of a mask for ``shape`` = (rows, queries, columns).

    ``pads`` is None while a prompt is read; its mask then tells where padding is. A row may be
    padding only so far.
    """
    b, m, n = shape
    if mask is None:
        no_pads = torch.zeros(b, dtype=torch.long, device=device)
        return MaskFacts(no_pads if pads is None else pads, True, True)
    visible = as_bool(mask).expand(b, 1, m, n)[:, 0]
    if pads is None:
        pads = left_padding(visible[:, -1], b, n, complete=False)
    columns = torch.arange(n, device=device)
    real = columns >= pads[:, None]
    is_open = bool((visible[:, -1] == real).all())
    if m == 1:
        return MaskFacts(pads, is_open, is_open)
    return MaskFacts(pads, _is_causal(visible, real, pads), is_open)


def _is_causal(visible: Bool[Tensor, "b m n"], real: Bool[Tensor, "b n"], pads: Tensor) -> bool:
    """Return True if every query that is not padding sees exactly the real columns up to its own.
    Compares in blocks of queries: for a chunk at 32k tokens, a tensor of the mask's size takes 32
    MB.
    """
    (b, m, n), device = visible.shape, visible.device
    columns = torch.arange(n, device=device)
    same = torch.ones((), dtype=torch.bool, device=device)
    rows = max(1, BLOCK // (b * n))
    blocks = torch.split(columns[n - m :], rows), torch.split(visible, rows, dim=1)
    for queries, seen in zip(*blocks, strict=True):
        causal = (columns <= queries[:, None]) & real[:, None]
        is_real = queries >= pads[:, None]  # padding queries may see anything
        same &= ((seen == causal) | ~is_real[:, :, None]).all()
    return bool(same)


def over_slots(
    mask: Tensor | None, columns: Int[Tensor, "b h s"], queries: Int[Tensor, "m"]
) -> Bool[Tensor, "b #h m s"]:
    """Return the slots that each query sees: the mask gathered at ``columns``; causal if it is
    None.
    """
    columns = once_for_heads(columns)
    occupied = (columns >= 0)[:, :, None]
    if mask is None:
        return occupied & (columns[:, :, None] <= queries[:, None])
    b, h, s = columns.shape
    visible = as_bool(mask).expand(b, h, len(queries), mask.shape[-1])
    index = columns.long().clamp_min(0)[:, :, None].expand(b, h, len(queries), s)
    return visible.gather(3, index) & occupied


def for_model(
    visible: Bool[Tensor, "b h m s"], groups: int, additive: torch.dtype | None
) -> Tensor:
    """Convert ``visible`` to a mask that the model's attention takes: each head repeated ``groups``
    times, boolean, or additive in the dtype ``additive``.
    """
    repeated = visible if groups == 1 else visible.repeat_interleave(groups, dim=1)
    if additive is None:
        return repeated
    zeros = torch.zeros(repeated.shape, dtype=additive, device=visible.device)
    return zeros.masked_fill(~repeated, torch.finfo(additive).min)


def slots_of(
    columns: Int[Tensor, "b h n"],
    compressed: bool,
    span: tuple[int, int],
    facts: MaskFacts,
    images: Images | None,
    mask: Tensor | None,
) -> Slots:
    """Return the slots at ``columns``, for queries at the columns of ``span`` (start, end).
    ``mask`` is the model's, over queries and columns.
    """
    queries = torch.arange(*span, device=columns.device)
    pads = facts.pads.to(columns.device)[:, None]
    shared = once_for_heads(columns)
    pos = torch.where(shared < 0, -1, shared - pads[:, None]).expand_as(columns)
    seen = None if facts.causal else over_slots(mask, columns, queries)
    if images is None:
        return Slots(pos=pos, q_pos=queries - pads, mask=seen)
    image, spot = (t.to(columns.device) for t in images)
    return Slots(
        pos=pos,
        q_pos=queries - pads,
        image=_of_slots(image, columns, compressed),
        spot=_of_slots(spot, columns, compressed),
        q_image=image[:, queries],
        mask=seen,
    )


def _of_slots(
    values: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"], compressed: bool
) -> Int[Tensor, "b h n"]:
    if not compressed:  # draft tokens may be known here before they are stored
        return values[:, None, : columns.shape[2]].expand_as(columns)
    return at_columns(values, columns)


def at_columns(values: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """Gather per-token values at ``columns``; -1 for empty slots."""
    shared = once_for_heads(columns).long()  # gather needs int64; stored columns may be int32
    gathered = values.gather(1, shared.clamp_min(0).flatten(1)).view_as(shared)
    return gathered.masked_fill(shared < 0, -1).expand_as(columns)
