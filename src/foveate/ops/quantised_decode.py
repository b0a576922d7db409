"""One decoding step's attention over pairs of which the oldest are codes of a few bits."""

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

    Keys have a least value and a step per group of pairs and channel, values per pair and group of
    ``channels`` channels. ``starts`` (b * h + 1) says where each head's pairs start, and where the
    last one's end; ``longest`` is the most that a head has.
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
    """Attention of one query per row over its heads' codes, then what is flat in full precision,
    then the tails; nothing is masked. Softmax in float32. A head without any pair gets zeros.

    The reference opens the codes, in a transient copy; the kernel reads them as they are, so that
    nothing of the size of the cache is made. Both read a number back as least + code * step, in the
    type of the query.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        coded: the oldest pairs, quantised.
        rest: pairs that heads hold different numbers of, in full precision.
        tail_k: keys of the newest pairs, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: as :func:`foveate.ops.choice.operator` says, which also lists the errors.
    """
    k, v = opened(coded, tail_v.shape[3])
    spans = coded.starts.diff(), rest.starts.diff()
    heads = torch.arange(len(spans[0]), device=k.device)
    order = torch.cat([heads.repeat_interleave(s) for s in spans]).argsort(stable=True)
    k, v = (torch.cat(pair)[order] for pair in ((k, rest.k), (v, rest.v)))
    lengths = (spans[0] + spans[1]).tolist()
    return ragged_decode(q, k, v, lengths, tail_k, tail_v, scale, n, impl="reference")


def opened(coded: FlatCodes, width: int) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]:
    """Keys and values, to within half a step each; ``width`` is the channels of a value."""
    channels = torch.arange(width, device=coded.v.device) // coded.channels
    k = decode(coded.k, coded.k_least[coded.group], coded.k_step[coded.group], coded.bits)
    return k, decode(coded.v, coded.v_least[:, channels], coded.v_step[:, channels], coded.bits)
