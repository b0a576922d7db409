"""One decoding step's attention to pairs of which the oldest are quantised."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from foveate.ops.affine_codes import decode
from foveate.ops.choice import Impl, operator
from foveate.ops.ragged_decode import FlatPairs, ragged_decode


class FlatCodes(NamedTuple):
    """``f`` pairs as codes, head after head, row after row, in the layout of ``affine_codes``.

    Keys have a minimum and a step per group of pairs and channel, values per pair and group of
    ``channels`` channels. ``starts`` (b * h + 1) are the starts of each head's pairs, and the end
    of the last head's. ``longest`` is the largest number of pairs of a head.
    """

    k: UInt8[Tensor, "f w"]
    k_least: Float[Tensor, "G d"]
    k_step: Float[Tensor, "G d"]
    group: Int[Tensor, "f"]
    v: UInt8[Tensor, "f u"]
    v_least: Float[Tensor, "f c"]
    v_step: Float[Tensor, "f c"]
    starts: Int[Tensor, "heads"]
    longest: int
    bits: int
    channels: int


@operator
def quantised_decode(
    q: Float[Tensor, "b hq 1 d"],
    coded: FlatCodes,
    rest: FlatPairs,
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Compute attention of one query per row to codes, then flat pairs, then tails.

    Nothing is masked. Softmax in float32. A head without any pair gets zeros.

    The reference decodes the codes to a temporary copy; the kernel reads the codes directly, and
    allocates nothing of the size of the cache. Both decode a number as minimum + code * step, in
    the dtype of the query.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        coded: the oldest pairs, quantised.
        rest: pairs in full precision, with different numbers per head.
        tail_k: keys of the newest pairs, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.
    """
    k, v = opened(coded, tail_v.shape[3])
    spans = coded.starts.diff(), rest.starts.diff()
    heads = torch.arange(len(spans[0]), device=k.device)
    order = torch.cat([heads.repeat_interleave(s) for s in spans]).argsort(stable=True)
    k, v = (torch.cat(pair)[order] for pair in ((k, rest.k), (v, rest.v)))
    lengths = (spans[0] + spans[1]).tolist()
    return ragged_decode(q, k, v, lengths, tail_k, tail_v, scale, n, impl="reference")


def opened(coded: FlatCodes, width: int) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]:
    """Decode keys and values to within half a step; ``width`` is a value's channels."""
    channels = torch.arange(width, device=coded.v.device) // coded.channels
    k = decode(coded.k, coded.k_least[coded.group], coded.k_step[coded.group], coded.bits)
    return k, decode(coded.v, coded.v_least[:, channels], coded.v_step[:, channels], coded.bits)
