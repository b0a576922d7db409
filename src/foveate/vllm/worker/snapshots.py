"""What a worker has to remember of a request at a boundary, beside the pairs that stay in the pool,
for another that begins alike to go on from there.

That are the positions of the pairs and the sums of a running score, one number a pair. Queries are
none of it: a request begins where it reads all of those that its next boundary asks for. Snapshots
lie in the host's memory, where the scheduler bounds them (``beginnings``): each takes a few percent
of what its pairs take in the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from foveate.compression.between_passes import Remembered
from foveate.vllm.worker.rows import RequestPrompt


class LayerSnapshot(NamedTuple):
    """Of one layer: where the kept pairs stood, how many each head kept, and running sums."""

    places: Int[Tensor, "h k"]
    kept: Int[Tensor, "1 h"] | None
    state: Mapping[str, Tensor]

    def to(self, device: Any) -> LayerSnapshot:
        """Return the snapshot on a device."""
        kept = None if self.kept is None else self.kept.to(device)
        state = {name: sums.to(device) for name, sums in self.state.items()}
        return LayerSnapshot(self.places.to(device), kept, state)


class Snapshots:
    """Those of a worker, by the numbers that the scheduler gives them."""

    def __init__(self) -> None:
        self._layers: dict[int, list[LayerSnapshot]] = {}

    def save(self, number: int, prompt: RequestPrompt) -> None:
        """Make a snapshot of a request that has just been compressed. Nothing of it is changed any
        more by the request: what is remembered is replaced, never written to.
        """
        layers = enumerate(prompt.reading.layers)
        self._layers[number] = [
            LayerSnapshot(prompt.places[ordinal], one.kept, one.state).to("cpu")
            for ordinal, one in layers
        ]

    def restore(self, number: int, prompt: RequestPrompt, device: Any) -> bool:
        """Lets a request go on from one; False where there is none of that number."""
        if number not in self._layers:
            return False
        for ordinal, one in enumerate(each.to(device) for each in self._layers[number]):
            prompt.places[ordinal] = one.places
            prompt.reading.layers[ordinal] = Remembered(state=one.state, kept=one.kept)
        return True

    def drop(self, numbers: Iterable[int]) -> None:
        """Forgets those of these numbers."""
        for number in numbers:
            self._layers.pop(number, None)
