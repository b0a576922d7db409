"""How much a stream holds, and the most that it may, told before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foveate.cache.pairs import GROWTH
from foveate.cache.pairs.form import COLUMN, COUNT
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.policies.policy import Policy


class StreamHeld(NamedTuple):
    """What a stream holds: ``tokens`` per KV head and layer on average, of so many ``seen`` and so
    many ``images``; ``bytes`` of the compressed layers, the most that there were after any frame
    (``peak``), and the most that there may be (``bound``, of chunks as long as the longest so far).
    ``offloaded`` are the bytes of frames elsewhere, if any are kept (``offload``).
    """

    tokens: float
    seen: int
    images: int
    bytes: int
    peak: int
    bound: int
    offloaded: int = 0


@dataclass
class Bound:
    """Of a policy that compresses while it reads, in chunks of up to ``longest`` tokens.

    A head holds its budget and fewer than ``every`` pairs more; a chunk comes on top before the
    layer is compressed, and spare room of a sixteenth (at least 32 tokens) with it.
    """

    policy: Policy
    longest: int = 0

    def tokens(self, budget: int) -> int:
        """The most pairs that a KV head has room for, under a budget in tokens."""
        most = budget + int(getattr(self.policy.when, "every", 1)) - 1 + self.longest
        return most + max(GROWTH, most // 16)

    def bytes(self, layers: Sequence[FoveateLayer]) -> int:
        """The same of all heads of these layers, in bytes; where heads keep different numbers, on
        average.
        """
        total = 0
        for layer in layers:
            form = layer.form(1)
            each = self.tokens(self._budget(layer)) * (form.pair + COLUMN)
            total += form.heads * (each + COUNT) + COUNT + layer.memory.nbytes
        return total

    def _budget(self, layer: FoveateLayer) -> int:
        """In tokens; of one in bytes what the layer kept last, or holds."""
        if self.policy.amount.kind == "tokens":
            return max(int(self.policy.amount.value), self.policy.least)
        kept = layer.memory.kept
        return int((layer.pairs.counts if kept is None else kept).max())
