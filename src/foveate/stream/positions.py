"""Positions of a stream's tokens within the range that the model knows."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from foveate.hf.endless.rerotation import Turned, next_position, reindex, ways_to_turn
from foveate.hf.layer.support import known_state, text_config
from foveate.hf.model.devices import input_device
from foveate.stream.reading import of_text

Positions = Literal["true", "reindexed"]
_ROOM = 1024  # positions for a question and its answer
_SAMPLE = "a text to find out with how positions turn keys"  # any text

_ADVICE = {
    "true": 'A smaller budget does not help: start a stream with positions="reindexed".',
    "reindexed": "The stored tokens alone are more: start a stream with a smaller budget.",
}


class StreamPositions:
    """Positions of one stream, whose model knows them up to its ``max_position_embeddings``.

    ``limit`` is the last one that leaves room for a question and its answer. ``ways`` are the
    layers' ways to rotate keys; they are found only for reindexed positions, or if ``turns`` is
    set.
    """

    def __init__(
        self, model: PreTrainedModel, processor: Any, positions: Positions, turns: bool = False
    ):
        self.model, self.processor, self.positions = model, processor, positions
        trained = getattr(text_config(model), "max_position_embeddings", None)
        self.limit = trained - min(_ROOM, trained // 4) if isinstance(trained, int) else None
        self.ways: list[Turned] = []
        self._needs_ways = turns or positions == "reindexed"
        self._warned = False

    def find_ways(self) -> None:
        """Find the layers' ways to rotate keys, once, if needed; not inside ``compress()``."""
        if self._needs_ways and not self.ways:
            ids = of_text(self.model, self.processor, _SAMPLE, first=False)
            self.ways = ways_to_turn(self.model, ids)

    def note(self, cache: DynamicCache) -> None:
        """Have the cache record its tokens' positions from now on."""
        none = torch.zeros(1, 0, dtype=torch.long, device=input_device(self.model))
        known_state(cache).update_tokens(position=none)

    def keep(self, cache: DynamicCache) -> None:
        """Close gaps between positions, or warn, if they exceed the limit."""
        if self.limit is None or next_position(cache) <= self.limit:
            return
        if self.positions == "reindexed":
            reindex(cache, self.ways)
        if next_position(cache) > self.limit and not self._warned:
            self._warned = True
            logging.getLogger("foveate").warning(
                "this stream's positions exceed %d, the model's range without a question and its "
                "answer. %s Logged once per stream.",
                self.limit,
                _ADVICE[self.positions],
            )
