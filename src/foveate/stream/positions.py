"""Positions of a stream's tokens: gaps are closed, or a warning is logged."""

from __future__ import annotations

import logging

from transformers import DynamicCache

from foveate.chat.positions import PositionRange

_ADVICE = {
    "true": 'A smaller budget does not help: start a stream with positions="reindexed".',
    "reindexed": "The stored tokens alone are more: start a stream with a smaller budget.",
}


class StreamPositions(PositionRange):
    """Range of positions for the cache of one stream, which warns once beyond it."""

    _warned = False

    def keep(self, cache: DynamicCache | None, more: int = 0) -> None:
        """Close gaps between positions, or warn, if they exceed the limit."""
        super().keep(cache, more)
        if cache is not None and self.exceeds(cache) and not self._warned:
            self._warned = True
            logging.getLogger("foveate").warning(
                "this stream's positions exceed %d, the model's range without a question and its "
                "answer. %s Logged once per stream.",
                self.limit,
                _ADVICE[self.positions],
            )
