"""Where the tokens of a stream stand, as the model counts."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from foveate.hf.endless.reindexed import Turned, next_position, reindex, ways_to_turn
from foveate.hf.layer.support import known_state, text_config
from foveate.hf.model.devices import input_device
from foveate.stream.reading import of_text

Positions = Literal["true", "reindexed"]
_ROOM = 1024  # positions for a question and its answer
_WORDS = "a text to find out with how positions turn keys"


class Places:
    """Of one stream, whose model knows positions up to its ``max_position_embeddings``. ``ways``
    are how its layers turn keys, where that is found out: to move them (``positions``), or because
    it is ``asked``.
    """

    def __init__(
        self, model: PreTrainedModel, processor: Any, positions: Positions, turns: bool = False
    ):
        self.model, self.processor, self.positions = model, processor, positions
        most = getattr(text_config(model), "max_position_embeddings", None)
        self.most = most - min(_ROOM, most // 4) if isinstance(most, int) else None
        self.ways: list[Turned] = []
        self._asked = turns or positions == "reindexed"
        self._said = False

    def find_out(self) -> None:
        """How the model turns keys, where that is needed: outside of a block, and once."""
        if self._asked and not self.ways:
            ids = of_text(self.model, self.processor, _WORDS, first=False)
            self.ways = ways_to_turn(self.model, ids)

    def note(self, cache: DynamicCache) -> None:
        """From now on the cache notes them."""
        none = torch.zeros(1, 0, dtype=torch.long, device=input_device(self.model))
        known_state(cache).update_tokens(position=none)

    def keep(self, cache: DynamicCache) -> None:
        """Before the model's range ends: closes gaps, or says that it does."""
        if self.most is None or next_position(cache) <= self.most:
            return
        if self.positions == "reindexed":
            reindex(cache, self.ways)
        if next_position(cache) > self.most and not self._said:
            self._said = True
            logging.getLogger("foveate").warning(
                "this stream's positions leave the range of the model (%d, a question and its "
                'answer included). Use positions="reindexed", or a smaller budget. Said once.',
                self.most,
            )
