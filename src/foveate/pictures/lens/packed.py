"""Kept sets and scores in few bytes.

Masks of a method at up to eight budgets share a byte for every head and token. A token that is kept
at a small budget is mostly kept at larger ones, too, so few of the 256 bytes occur, and zlib makes
them short.

Scores take a byte each: attention is heavy-tailed, so its steps are even on the square root of
(score - lowest) / (highest - lowest), head by head, and finer for small scores than for large ones.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

LEVELS = 254  # the code of a head's highest score
NO_SCORE = 255


class Packet:
    """Byte strings one after the other, equal ones once."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Where the bytes stand."""
        if data not in self._places:
            self._places[data] = len(self._data)
            self._data += data
        return self._places[data]

    def text(self) -> str:
        """All of them, as a zlib stream in base64."""
        return base64.b64encode(zlib.compress(bytes(self._data), level=9)).decode("ascii")


def planes(masks: Sequence[Bool[Tensor, "r t"]]) -> list[bytes]:
    """A byte for every row and token, with a bit for each of eight masks, the lowest for the first;
    a plane for every eight masks.
    """
    whole = np.stack([mask.numpy() for mask in masks])
    return [
        np.packbits(whole[start : start + 8], axis=0, bitorder="little").tobytes()
        for start in range(0, len(whole), 8)
    ]


def table(scores: Float[Tensor, "r t"]) -> bytes:
    """Lowest and highest score of each row, as pairs of little-endian float32, then the codes."""
    codes, low, high = in_bytes(scores)
    ends = torch.stack([low, high], -1).numpy().astype("<f4")
    return ends.tobytes() + codes.numpy().tobytes()


def in_bytes(
    scores: Float[Tensor, "r t"],
) -> tuple[UInt8[Tensor, "r t"], Float[Tensor, "r"], Float[Tensor, "r"]]:
    """Codes, and the lowest and highest finite score of each row (0 where there is none)."""
    finite = scores.isfinite()
    none = ~finite.any(-1)
    low = scores.masked_fill(~finite, torch.inf).amin(-1).masked_fill(none, 0.0)
    high = scores.masked_fill(~finite, -torch.inf).amax(-1).masked_fill(none, 0.0)
    span = (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    share = (scores.masked_fill(~finite, 0.0) - low[:, None]).clamp_min(0) / span[:, None]
    codes = (LEVELS * share.clamp_max(1).sqrt()).round().to(torch.uint8)
    return codes.masked_fill(~finite, NO_SCORE), low, high


def tables(scores: Sequence[Float[Tensor, "r t"]]) -> tuple[list[Tensor], list[int]]:
    """As few tables as hold what was scored at each budget, and which one each budget reads.

    A score that does not depend on the budget has one: what is protected at one budget has its
    score from another.
    """
    made: list[Tensor] = []
    which = []
    for mine in scores:
        for place, other in enumerate(made):
            both = mine.isfinite() & other.isfinite()
            if torch.equal(mine[both], other[both]):
                made[place] = torch.where(mine.isfinite(), mine, other)
                break
        else:
            place = len(made)
            made.append(mine)
        which.append(place)
    return made, which
