"""From the model's mask over columns to a mask over the slots that are left.

The mask is made inside the model's own forward pass, so the first layer that attends looks at it,
and the layers after it take over what was found, as long as their mask is the very same object.
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
    """What one forward pass's mask says, worked out once for all layers.

    ``causal``: apart from padding, a query sees every column up to its own.
    ``open``: the last query sees every column that is not padding.
    """

    pads: Int[Tensor, "b"]
    causal: bool
    open: bool


@dataclass(eq=False)
class PassView:
    """One mask of one pass. ``own`` is what the model's attention was given, ``mask`` the same over
    queries and columns; ``shape`` counts rows, tokens of the pass, and tokens seen with it.
    ``pads`` are known where the mask does not have to tell them. The other fields are found by the
    first layer that asks (:class:`foveate.hf.layer.state.CacheState`).
    """

    own: Any
    shape: tuple[int, int, int]
    mask: Tensor | None
    pads: Int[Tensor, "b"] | None
    device: torch.device
    facts: MaskFacts | None = None
    whole: tuple[Tensor, Slots] | None = None  # the slots of every column, and these columns


def over_columns(mask: Any, b: int, m: int, n: int) -> Tensor | None:
    """The mask over queries and columns [b, 1, m, n] that a model's own kind of mask stands for:
    what it is already, a flash attention's [b, n] of what is no padding, or a flex attention's
    blocks. None where every query sees all up to itself.

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
            f"the attention mask is a {type(mask).__name__} of shape {getattr(mask, 'shape', '?')},"
            f" which does not tell what {m} queries see of {n} columns."
        )
    columns = torch.arange(n, device=mask.device)
    causal = columns <= columns[n - m :, None]
    return (causal & (mask != 0)[:, None])[:, None]


def as_bool(mask: Tensor) -> Bool[Tensor, "b 1 m n"]:
    """True where a query sees a column, from a boolean or an additive mask.

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
    """The mask of these of its queries; of the first one where the index is negative."""
    rows = as_bool(mask).expand(len(index), 1, -1, -1)
    return rows.gather(2, index.clamp_min(0)[:, None, :, None].expand(-1, -1, -1, rows.shape[3]))


def examine(
    mask: Tensor | None,
    pads: Int[Tensor, "b"] | None,
    shape: tuple[int, int, int],
    device: torch.device,
) -> MaskFacts:
    """Reads the facts off a mask for ``shape`` = (rows, queries, columns).

    ``pads`` is None while a prompt is read, whose mask tells where padding stands. A row may be
    nothing but padding so far.
    """
    b, m, n = shape
    if mask is None:
        none = torch.zeros(b, dtype=torch.long, device=device)
        return MaskFacts(none if pads is None else pads, True, True)
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
    """Whether every query that is no padding sees all real columns up to its own, and no other. In
    blocks of queries: of a chunk at 32k tokens a tensor of the mask's size takes 32 MB.
    """
    (b, m, n), device = visible.shape, visible.device
    columns = torch.arange(n, device=device)
    same = torch.ones((), dtype=torch.bool, device=device)
    rows = max(1, BLOCK // (b * n))
    blocks = torch.split(columns[n - m :], rows), torch.split(visible, rows, dim=1)
    for queries, seen in zip(*blocks, strict=True):
        causal = (columns <= queries[:, None]) & real[:, None]
        seeing = queries >= pads[:, None]  # what padding queries see does not matter
        same &= ((seen == causal) | ~seeing[:, :, None]).all()
    return bool(same)


def over_slots(
    mask: Tensor | None, columns: Int[Tensor, "b h s"], queries: Int[Tensor, "m"]
) -> Bool[Tensor, "b h m s"]:
    """Which slots each query sees: the mask over columns, gathered; causal where it is None."""
    held = (columns >= 0)[:, :, None]
    if mask is None:
        return held & (columns[:, :, None] <= queries[:, None])
    b, h, s = columns.shape
    visible = as_bool(mask).expand(b, h, len(queries), mask.shape[-1])
    index = columns.long().clamp_min(0)[:, :, None].expand(b, h, len(queries), s)
    return visible.gather(3, index) & held


def for_model(
    visible: Bool[Tensor, "b h m s"], groups: int, additive: torch.dtype | None
) -> Tensor:
    """The mask as the model's attention takes it: each head's ``groups`` times, boolean or
    additive.
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
    """The slots at these columns, for queries that stand at a ``span`` of columns. ``mask`` is the
    model's, over queries and columns.
    """
    queries = torch.arange(*span, device=columns.device)
    pads = facts.pads.to(columns.device)[:, None]
    some = once_for_heads(columns)
    pos = torch.where(some < 0, -1, some - pads[:, None]).expand_as(columns)
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
    known: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"], compressed: bool
) -> Int[Tensor, "b h n"]:
    if not compressed:  # drafted tokens may be known here before they are held
        return known[:, None, : columns.shape[2]].expand_as(columns)
    return at_columns(known, columns)


def at_columns(known: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """What is known of the tokens seen, at these columns; -1 where there is none."""
    some = once_for_heads(columns).long()  # they may be as they are held, of 32 bits
    gathered = known.gather(1, some.clamp_min(0).flatten(1)).view_as(some)
    return gathered.masked_fill(some < 0, -1).expand_as(columns)
