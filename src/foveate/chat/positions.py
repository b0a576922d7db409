"""Positions of a chat's or stream's tokens within the range that the model knows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import InvalidParameter, UnsupportedModel
from foveate.hf.endless.rerotation import Turned, next_position, reindex, ways_to_turn
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.hf.model.devices import input_device
from foveate.policies.policy import Policy
from foveate.policies.protocols import FullPrecision
from foveate.prompts.inputs import text_ids

Positions = Literal["true", "reindexed"]
_ROOM = 1024  # positions for a question and its answer
_SAMPLE = "a text to find out with how positions turn keys"  # any text


class PositionRange:
    """Range of positions that a model knows, for the caches of one chat or stream.

    ``limit`` leaves room for a question and its answer. ``ways`` are the layers' ways to rotate
    keys; they are found only for reindexed positions, or if ``turns`` is set.

    Raises:
        InvalidParameter: unknown ``positions``, or reindexed ones under a policy whose keys are not
            stored in full precision.
        UnsupportedModel: reindexed positions of a model with layers that are never compressed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        policy: Policy,
        positions: Positions,
        turns: bool = False,
    ):
        _check(model, policy, positions)
        self.model, self.processor, self.positions = model, processor, positions
        trained = self.trained
        self.limit = None if trained is None else trained - min(_ROOM, trained // 4)
        self.ways: list[Turned] = []
        self._needs_ways = turns or positions == "reindexed"

    @property
    def trained(self) -> int | None:
        """The model's ``max_position_embeddings``; None if it states none."""
        trained = getattr(text_config(self.model), "max_position_embeddings", None)
        return trained if isinstance(trained, int) else None

    @property
    def is_reindexed(self) -> bool:
        """True if gaps between positions are closed."""
        return self.positions == "reindexed"

    def find_ways(self) -> None:
        """Find the layers' ways to rotate keys, once, if needed; not inside ``compress()``.

        Raises:
            UnsupportedModel: a model that rotates keys in an unknown way.
        """
        if self._needs_ways and not self.ways:
            ids = text_ids(self.processor, _SAMPLE, add_special_tokens=False)
            device = input_device(self.model)
            self.ways = ways_to_turn(
                self.model, torch.tensor([ids], dtype=torch.long, device=device)
            )

    def exceeds(self, cache: DynamicCache, more: int = 0) -> bool:
        """Return True if the cache's positions, and ``more``, exceed the limit."""
        return self.limit is not None and next_position(cache) + more > self.limit

    def keep(self, cache: DynamicCache | None, more: int = 0) -> None:
        """Close gaps between positions, if these and ``more`` tokens exceed the limit."""
        if cache is not None and self.is_reindexed and self.exceeds(cache, more):
            reindex(cache, self.ways)


def _check(model: PreTrainedModel, policy: Policy, positions: Positions) -> None:
    """Refuse unknown positions, and reindexed ones where keys cannot be rotated."""
    if positions not in ("true", "reindexed"):
        raise InvalidParameter(f'positions={positions!r}: give "true" or "reindexed".')
    if positions == "true":
        return
    if not isinstance(policy.store, FullPrecision):
        raise InvalidParameter(
            f'positions="reindexed" rotates stored keys, and {policy.store!r} does not store them '
            'in full precision. Use positions="true", or a policy without this store.'
        )
    config = text_config(model)
    layers = len(DynamicCache(config=config).layers)
    if (others := layers - len(compressible_layers(config))) > 0:
        raise UnsupportedModel(
            f'positions="reindexed" rotates the keys of all layers, and {others} of the {layers} '
            f"layers of a {type(model).__name__} are not compressed (sliding windows or recurrent "
            'states). Use positions="true".'
        )
