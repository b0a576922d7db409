"""The kept slot that each other slot is nearest to."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, operator

BYTES = 16 * 2**20


class Nearest(NamedTuple):
    """For every slot the index of a kept slot, and the cosine of their keys (if it was asked)."""

    slot: Int[Tensor, "b h n"]
    cosine: Float[Tensor, "b h n"]


@operator
def nearest_by_cosine(
    k: Float[Tensor, "b h n d"], kept: Bool[Tensor, "b h n"], *, impl: Impl | None = None
) -> Nearest:
    """Find the kept slot whose key has the largest cosine, in float32; of equal ones the earlier.

    Takes O(n * kept) time, and makes no n x kept matrix: the reference works in blocks of slots,
    beside the normalised keys with ``BYTES`` of cosines (or those of one slot a head). ``impl`` and
    errors are as :func:`foveate.ops.choice.operator` says. Where cosines differ by rounding alone,
    reference and kernel may choose differently.
    """
    b, h, n, d = k.shape
    index, empty = listed(kept)
    keys = F.normalize(k.float(), dim=-1)
    targets = keys.gather(2, index[..., None].expand(-1, -1, -1, d))
    # in a shorter list it is padding that stands there, where any number may be
    targets = targets.masked_fill(empty[..., None], 0.0).transpose(2, 3)
    hidden = torch.zeros_like(empty, dtype=torch.float32).masked_fill(empty, -torch.inf)
    slot = torch.empty(b, h, n, dtype=torch.long, device=k.device)
    cosine = torch.empty(b, h, n, dtype=torch.float32, device=k.device)
    rows = max(1, BYTES // max(1, 4 * b * h * index.shape[2]))
    for a in range(0, n, rows):
        some = slice(a, a + rows)
        cosines = keys[:, :, some] @ targets
        if bool(empty.any()):
            cosines += hidden[:, :, None]
        cosine[:, :, some], place = cosines.max(-1)  # LOOK-M eq. 9
        slot[:, :, some] = index.gather(2, place)
    return Nearest(slot, cosine)


def nearest_by_position(pos: Int[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]) -> Nearest:
    """The kept slot whose token stands nearest; of two equally near ones the earlier.

    The cosine is not computed: it is NaN.
    """
    index, empty = listed(kept)
    far = torch.iinfo(torch.int32).max
    places = pos.gather(2, index).masked_fill(empty, far)
    after = torch.searchsorted(places, pos.contiguous())
    last = (~empty).sum(-1, keepdim=True) - 1
    before = (after - 1).clamp_min(0)
    after = torch.minimum(after, last).clamp_min(0)
    closer = (places.gather(2, after) - pos).abs() < (pos - places.gather(2, before)).abs()
    slot = index.gather(2, torch.where(closer, after, before))
    return Nearest(slot, slot.new_full(slot.shape, torch.nan, dtype=torch.float32))


def listed(kept: Bool[Tensor, "b h n"]) -> tuple[Int[Tensor, "b h s"], Bool[Tensor, "b h s"]]:
    """The kept slots in order, and which places of the list are empty (they stand at the end)."""
    counts = kept.sum(-1)
    most = max(1, int(counts.max()))
    index = (~kept).int().argsort(dim=-1, stable=True)[..., :most]
    return index, torch.arange(most, device=kept.device) >= counts[..., None]
