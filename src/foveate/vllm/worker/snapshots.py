"""Snapshots: a worker's state of a request at a boundary, from which another request with the same
beginning continues.

A snapshot has the positions of the kept pairs and the sums of a running score, one number per pair;
the pairs themselves are copied inside the pool. Queries are not needed: a request begins so that it
reads all queries that its next boundary uses. Snapshots are in host memory, a few percent of the
size of their pairs, and the scheduler bounds their number (``beginnings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from foveate.compression.layer_memory import Remembered
from foveate.vllm.worker.rows import RequestPrompt


class LayerSnapshot(NamedTuple):
    """State of one layer: positions of kept pairs, counts per head, and running sums."""

    positions: Int[Tensor, "h k"]
    kept: Int[Tensor, "1 h"] | None
    state: Mapping[str, Tensor]

    def to(self, device: Any) -> LayerSnapshot:
        """Return a copy of the snapshot on a device."""
        kept = None if self.kept is None else self.kept.to(device)
        state = {name: sums.to(device) for name, sums in self.state.items()}
        return LayerSnapshot(self.positions.to(device), kept, state)


class Snapshots:
    """Snapshots of a worker, by the numbers that the scheduler gives them."""

    def __init__(self) -> None:
        self._layers: dict[int, dict[int, LayerSnapshot]] = {}  # of this worker, by ordinal

    def save(self, number: int, prompt: RequestPrompt) -> None:
        """Make a snapshot of a request that has just been compressed. The request never modifies
        these tensors in place; it replaces them.
        """
        layers = prompt.reading.layers
        self._layers[number] = {
            ordinal: LayerSnapshot(kept, layers[ordinal].kept, layers[ordinal].state).to("cpu")
            for ordinal, kept in prompt.positions.items()
        }

    def restore(self, number: int, prompt: RequestPrompt, device: Any) -> bool:
        """Set a request's state from a snapshot; return False if there is none with that number."""
        if number not in self._layers:
            return False
        for ordinal, snapshot in self._layers[number].items():
            layer = snapshot.to(device)
            prompt.positions[ordinal] = layer.positions
            prompt.reading.layers[ordinal] = Remembered(state=layer.state, kept=layer.kept)
        return True

    def drop(self, numbers: Iterable[int]) -> None:
        """Delete the snapshots with these numbers."""
        for number in numbers:
            self._layers.pop(number, None)
