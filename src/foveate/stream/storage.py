"""Size of a stream's memory, and an upper bound of it that is known in advance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from foveate.cache.pairs import GROWTH
from foveate.cache.pairs.pair_sizes import COLUMN, COUNT
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.policies.policy import Policy


class StreamHeld(NamedTuple):
    """Size of a stream's memory.

    ``tokens`` are stored per KV head and layer on average, of ``seen`` tokens and ``images``.
    ``bytes`` is the size of the compressed layers, ``peak`` its maximum after any frame so far, and
    ``bound`` an upper bound for chunks no longer than the longest so far. ``offloaded`` is the size
    of offloaded frames in bytes.
    """

    tokens: float
    seen: int
    images: int
    bytes: int
    peak: int
    bound: int
    offloaded: int = 0


class StreamFrame(NamedTuple):
    """Frame of which something is stored.

    ``number`` counts the stream's frames from 0; ``time`` is in seconds, if known. ``tokens`` are
    those of the frame with its text, and ``kept`` is the share of their pairs that is stored, over
    all heads and layers.
    """

    number: int
    time: float | None
    tokens: int
    kept: float


class FrameLog:
    """Times and sizes of the frames of which something may be stored, by number."""

    def __init__(self, entries: Sequence[Sequence[Any]] = ()):
        self._frames: dict[int, tuple[float | None, int]] = {n: (t, k) for n, t, k in entries}

    def add(self, image: Int[Tensor, "1 t"], times: Sequence[int | float | None]) -> None:
        """Add the frames of a chunk: each token's frame number, and each frame's time."""
        numbers, sizes = torch.unique(image, return_counts=True)
        for number, size, time in zip(numbers.tolist(), sizes.tolist(), times, strict=True):
            self._frames[number] = None if time is None else float(time), size

    def drop(self, left: Int[Tensor, "1 seen"]) -> None:
        """Drop the frames that are not in ``left``, so that the log does not grow for ever."""
        numbers = set(left.flatten().tolist())
        self._frames = {n: frame for n, frame in self._frames.items() if n in numbers}

    @property
    def entries(self) -> list[list[Any]]:
        """Number, time and size of each frame, for JSON."""
        return [[number, *frame] for number, frame in self._frames.items()]

    def left(self, cache: DynamicCache) -> tuple[StreamFrame, ...]:
        """Return the frames of which the cache stores something, in order."""
        images, counts, heads = known_state(cache).images(), Counter[int](), 0
        if images is None:
            return ()
        for layer in foveate_layers(cache):
            columns = layer.pairs.columns[0]
            heads += len(columns)
            owners = images[0][0].to(columns.device)[columns[columns >= 0].long()]
            numbers, pairs = torch.unique(owners, return_counts=True)
            counts.update(dict(zip(numbers.tolist(), pairs.tolist(), strict=True)))
        return tuple(
            StreamFrame(number, time, size, counts[number] / (size * heads))
            for number, (time, size) in sorted(self._frames.items())
            if counts[number]
        )


@dataclass
class Bound:
    """Upper bound of a stream's memory, for chunks of at most ``longest`` tokens.

    A head stores its budget and fewer than ``every`` pairs more. A chunk adds to it before the
    layer is compressed, and so does spare room of a sixteenth (at least 32 tokens).
    """

    policy: Policy
    longest: int = 0

    def tokens(self, budget: int) -> int:
        """Return the maximum capacity of a KV head in pairs, under a budget in tokens."""
        limit = budget + int(getattr(self.policy.when, "every", 1)) - 1 + self.longest
        return limit + max(GROWTH, limit // 16)

    def bytes(self, layers: Sequence[FoveateLayer]) -> int:
        """Return the bound for all heads of these layers in bytes.

        If heads have different budgets, it holds for their mean.
        """
        total = 0
        for layer in layers:
            form = layer.form(1)
            each = self.tokens(self._budget(layer)) * (form.pair + COLUMN)
            total += form.heads * (each + COUNT) + COUNT + layer.memory.nbytes
        return total

    def _budget(self, layer: FoveateLayer) -> int:
        """Return a layer's budget in tokens; for one in bytes, the pairs kept last or stored."""
        if self.policy.amount.kind == "tokens":
            return max(int(self.policy.amount.value), self.policy.least)
        kept = layer.memory.kept
        return int((layer.pairs.counts if kept is None else kept).max())
