"""A decoding step over quantised pairs as they are held, where the kernels were chosen.

The reference would open them all the same, so without the kernels a layer does what it does for
pairs in full precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from foveate.ops.choice import chosen
from foveate.ops.quantised_decode import quantised_decode
from foveate.stages.store import QuantisedPairs

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer


def attention(
    owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float
) -> Float[Tensor, "b 1 hq e"] | None:
    """The attention of one query per row; None where the pairs have to be opened."""
    pairs, m = owner.pairs, query.shape[2]
    if m > 1 or not isinstance(pairs, QuantisedPairs) or chosen() == "reference":
        return None
    if not owner.state.facts(mask, (query.shape[0], m, owner.seen), query.device).open:
        return None
    out = quantised_decode(query, *pairs.parts, scale, owner.state.policy.attend.n)
    return out.transpose(1, 2)
