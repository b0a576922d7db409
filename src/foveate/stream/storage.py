"""Size of a stream's memory, and an upper bound of it that is known in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foveate.cache.pairs import GROWTH
from foveate.cache.pairs.pair_sizes import COLUMN, COUNT
from foveate.hf.layer.cache_layer import FoveateLayer
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
