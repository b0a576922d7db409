"""The nearest kept slot of every other slot."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, operator

BYTES = 16 * 2**20


class Nearest(NamedTuple):
    """Index of the nearest kept slot for every slot, and the cosine of their keys if computed."""

    slot: Int[Tensor, "b h n"]
    cosine: Float[Tensor, "b h n"]


@operator
def nearest_by_cosine(
    k: Float[Tensor, "b h n d"], kept: Bool[Tensor, "b h n"], *, impl: Impl | None = None
) -> Nearest:
    """Find the kept slot whose key has the largest cosine, in float32; the earlier one of ties.

    It takes O(n * kept) time, and builds no n x kept matrix. The reference works in blocks of
    slots; its temporary memory is ``BYTES`` of cosines (at least one slot per head) and the
    normalised keys. If cosines differ only by rounding, reference and kernel may choose
    differently. For ``impl`` and errors see :func:`foveate.ops.choice.operator`.
    """
    b, h, n, d = k.shape
    index, empty = listed(kept)
    keys = F.normalize(k.float(), dim=-1)
    targets = keys.gather(2, index[..., None].expand(-1, -1, -1, d))
    # empty entries of shorter lists point to slots that may contain any number
    targets = targets.masked_fill(empty[..., None], 0.0).transpose(2, 3)
    hidden = torch.zeros_like(empty, dtype=torch.float32).masked_fill(empty, -torch.inf)
    slot = torch.empty(b, h, n, dtype=torch.long, device=k.device)
    cosine = torch.empty(b, h, n, dtype=torch.float32, device=k.device)
    rows = max(1, BYTES // max(1, 4 * b * h * index.shape[2]))
    for start in range(0, n, rows):
        block = slice(start, start + rows)
        cosines = keys[:, :, block] @ targets
        if bool(empty.any()):
            cosines += hidden[:, :, None]
        cosine[:, :, block], entry = cosines.max(-1)  # LOOK-M eq. 9
        slot[:, :, block] = index.gather(2, entry)
    return Nearest(slot, cosine)


def nearest_by_position(pos: Int[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]) -> Nearest:
    """Find the kept slot whose token has the nearest position; the earlier one of ties.

    The cosine is not computed: it is NaN.
    """
    index, empty = listed(kept)
    far = torch.iinfo(torch.int32).max
    positions = pos.gather(2, index).masked_fill(empty, far)
    after = torch.searchsorted(positions, pos.contiguous())
    last = (~empty).sum(-1, keepdim=True) - 1
    before = (after - 1).clamp_min(0)
    after = torch.minimum(after, last).clamp_min(0)
    closer = (positions.gather(2, after) - pos).abs() < (pos - positions.gather(2, before)).abs()
    slot = index.gather(2, torch.where(closer, after, before))
    return Nearest(slot, slot.new_full(slot.shape, torch.nan, dtype=torch.float32))


def listed(kept: Bool[Tensor, "b h n"]) -> tuple[Int[Tensor, "b h s"], Bool[Tensor, "b h s"]]:
    """Return the kept slots in order, and a mask of the list's empty entries, which are last."""
    counts = kept.sum(-1)
    longest = max(1, int(counts.max()))
    index = (~kept).int().argsort(dim=-1, stable=True)[..., :longest]
    return index, torch.arange(longest, device=kept.device) >= counts[..., None]
