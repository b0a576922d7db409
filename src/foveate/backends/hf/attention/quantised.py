"""A decoding step over quantised pairs as they are held, where the kernels were chosen.

The reference would open them all the same, so without the kernels a layer does what it does for
pairs in full precision.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from foveate.backends.hf.attention.attended import Attended
from foveate.core.storage import Pairs
from foveate.ops.choice import chosen
from foveate.ops.quantised_decode import quantised_decode
from foveate.stages.store import QuantisedPairs


def over_codes(
    query: Float[Tensor, "b hq 1 d"], pairs: Pairs, scale: float, n: float
) -> Attended | None:
    """The attention of one query per row that sees all pairs; None where they have to be opened."""
    if not isinstance(pairs, QuantisedPairs) or chosen() == "reference":
        return None
    return Attended(quantised_decode(query, *pairs.parts, scale, n).transpose(1, 2))
