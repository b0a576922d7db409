"""The prompt's attention with its column sums: one softmax for both, where the score needs them.

A second pass over all queries and keys would cost nearly as much as the attention itself. The
output differs from that of the stock attention by rounding (1e-6 in float32), so this is done only
for prompts that will be compressed.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from foveate.backends.hf.attention.attended import Attended
from foveate.ops.column_sums import attention_with_sums


def with_column_sums(
    query: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int],
) -> Attended:
    """Causal attention, padding of each row in front."""
    out, sums = attention_with_sums(query, k, v, scale, pads)
    return Attended(out.to(query.dtype).transpose(1, 2), column_sums=sums)
