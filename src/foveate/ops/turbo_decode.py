"""One decoding step's attention to pairs of which the oldest are TurboQuant codes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from foveate.ops.choice import Impl, operator
from foveate.ops.ragged_decode import FlatPairs
from foveate.ops.softmax_n import softmax_n
from foveate.ops.turbo_codes import (
    bytes_of,
    projection,
    rotated_units,
    rotation,
    signs_of,
    sketch_scale,
)

TILE = 1024  # pairs of a head that are decoded at once: their levels stay in the CPU's cache


class TurboCodes(NamedTuple):
    """``f`` pairs as codes of :mod:`foveate.ops.turbo_codes`, head after head, row after row.

    ``starts`` (b * h + 1) are the starts of each head's pairs, and the end of the last head's.
    ``longest`` is the largest number of pairs of a head. Keys have a sketch if ``k_norms`` has two
    columns.
    """

    k: UInt8[Tensor, "f w"]
    k_norms: Float[Tensor, "f s"]
    v: UInt8[Tensor, "f u"]
    v_norms: Float[Tensor, "f 1"]
    starts: Int[Tensor, "heads"]
    longest: int
    bits: int


@operator
def turbo_decode(
    q: Float[Tensor, "b hq 1 d"],
    coded: TurboCodes,
    rest: FlatPairs,
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Compute attention of one query per row to codes, then flat pairs, then tails.

    Nothing is masked. Softmax in float32. Every head needs a pair. The query is rotated once
    instead of every key, and the output once instead of every value; a tile of pairs at a time is
    decoded to levels, so that only the logits are as long as the cache.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        coded: the oldest pairs, as codes.
        rest: pairs in full precision, with different numbers per head.
        tail_k: keys of the newest pairs, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.
    """
    b, hq, _, d = q.shape
    h, t, e = tail_k.shape[1], *tail_v.shape[2:]
    queries = (q.float() * scale).reshape(b * h, hq // h, d)
    logits = queries.new_full((*queries.shape[:2], coded.longest + rest.longest + t), -torch.inf)
    sketch = coded.k_norms.shape[1] == 2
    rotated = queries @ rotation(d, q.device).T
    sketched = queries @ projection(d, q.device).T if sketch else rotated
    tiles, rest_spans = list(_tiles(coded)), list(_spans(rest.starts))
    for head, tile, slots in tiles:
        part = rotated[head] @ rotated_units(*_key_codes(coded, slots, d)).T
        if sketch:
            signs = signs_of(coded.k[slots, bytes_of(d, coded.bits - 1) :], d)
            part += sketched[head] @ signs.T * sketch_scale(coded.k_norms[slots], d).T
        logits[head, :, tile] = part * coded.k_norms[slots, :1].float().T
    for head, slots in enumerate(rest_spans):
        later = slice(coded.longest, coded.longest + slots.stop - slots.start)
        logits[head, :, later] = queries[head] @ rest.k[slots].float().T
    logits[..., coded.longest + rest.longest :] = queries @ tail_k.reshape(
        b * h, t, d
    ).float().transpose(1, 2)
    weights = softmax_n(logits, n)
    out = weights[..., coded.longest + rest.longest :] @ tail_v.reshape(b * h, t, e).float()
    of_codes = torch.zeros_like(out)
    for head, tile, slots in tiles:
        levels = rotated_units(coded.v[slots], e, coded.bits)
        of_codes[head] += weights[head, :, tile] * coded.v_norms[slots].float().T @ levels
    for head, slots in enumerate(rest_spans):
        later = slice(coded.longest, coded.longest + slots.stop - slots.start)
        out[head] += weights[head, :, later] @ rest.v[slots].float()
    return (out + of_codes @ rotation(e, q.device)).to(q.dtype).view(b, hq, 1, e)


def _key_codes(coded: TurboCodes, slots: slice, d: int) -> tuple[Tensor, int, int]:
    """Return the codes of some keys without their sketches, their size and their bits."""
    bits = coded.bits - (coded.k_norms.shape[1] == 2)
    return coded.k[slots, : bytes_of(d, bits)], d, bits


def _tiles(coded: TurboCodes) -> Iterator[tuple[int, slice, slice]]:
    """Yield each tile's head, its slots within the head, and within all pairs."""
    for head, span in enumerate(_spans(coded.starts)):
        for start in range(span.start, span.stop, TILE):
            end = min(start + TILE, span.stop)
            yield head, slice(start - span.start, end - span.start), slice(start, end)


def _spans(starts: Int[Tensor, "heads"]) -> Iterator[slice]:
    """Yield each head's pairs; waits for the device."""
    return (slice(*edges) for edges in pairwise(starts.tolist()))
