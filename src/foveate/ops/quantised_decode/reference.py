"""Plain torch: the codes are opened, and what is left is ragged decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from foveate.ops.affine_codes import decode
from foveate.ops.ragged_decode import ragged_decode


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


class Rest(NamedTuple):
    """Flat pairs in full precision, as :func:`ragged_decode` takes them."""

    k: Float[Tensor, "r d"]
    v: Float[Tensor, "r e"]
    starts: Int[Tensor, "heads"]
    longest: int


def quantised_decode(
    q: Float[Tensor, "b hq 1 d"],
    coded: FlatCodes,
    rest: Rest,
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float,
) -> Float[Tensor, "b hq 1 e"]:
    """A transient copy of everything in full precision."""
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
