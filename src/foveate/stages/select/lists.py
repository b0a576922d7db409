"""CSP's two lists: the best by attention within a modality, and by attention across."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.errors import InvalidParameter
from foveate.stages.recent import part


def beyond_lists(
    who: str, scored: Scored, counts: Int[Tensor, "b h"], cross_ratio: float
) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
    """How many places each slot stands behind the end of the list by the part "self", and of that
    by "cross"; negative: it is on the list. What can be in no list is n places behind or more.

    The lists share what ``counts`` leave beside the protected slots: ``cross_ratio`` of it, as
    written (0.29 of 100 is 29) and rounded down, is the length of the second.

    Raises:
        InvalidParameter: a score without these parts; ``who`` asked for them.
    """
    parts, values = scored.scores.parts, scored.scores.values
    if not {"self", "cross"} <= parts.keys():
        raise InvalidParameter(
            f"the {who} draws on self and cross scores, and this score has "
            "none. Use it with score=cross_self_attention, alone or inside head_mean."
        )
    free = values.isfinite()
    k = counts - (values == torch.inf).sum(-1)
    cross = part(k, cross_ratio)
    return (
        _places(parts["self"], free) - (k - cross)[..., None],
        _places(parts["cross"], free) - cross[..., None],
    )


def _places(scores: Float[Tensor, "b h n"], free: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """Each slot's place in the order of the highest scores, from 0; of equal ones the earlier is
    first. What is not ``free`` or scores zero is in no list: 2 n, past the end of any.
    """
    listed = free & (scores > 0)
    order = scores.masked_fill(~listed, -1.0).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).masked_fill(~listed, 2 * scores.shape[-1])
