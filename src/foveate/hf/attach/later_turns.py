"""Around a model's calls: where the tokens of later turns stand (M-RoPE), before its own rule says.

How a turn is placed is in ``positions``; here is when: as ``generate`` asks the model's rule, as a
caller gives a turn to the model itself, and after every pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foveate.hf.attach.positions import go_on, new_ids, note_positions, of_turn
from foveate.hf.layer.hooks import wrap
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers, state_of
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import CACHE, GIVEN, POSITIONS_RULE


class LaterTurns:
    """Of one model, whose modules that note offsets are ``offsets``. Does nothing for one whose
    tokens stand on one axis.
    """

    def __init__(self, offsets: Mapping[str, nn.Module], place: DecoderPath):
        self._axes = {name: module for name, module in offsets.items() if module in place.modules}
        rules = [m for m in place.modules if self._axes and hasattr(m, POSITIONS_RULE)]
        self._with_rules, self._around = rules, [m for m in place.around if m in rules]

    def follow(self, undo: ExitStack) -> None:
        """From now on the models' rules know the conversation, until it is undone."""
        for module in self._with_rules:
            wrap(undo, module, POSITIONS_RULE, partial(self._by_rule, module))

    def _by_rule(self, model: Any, rule: Any, ids: Tensor, given: dict[str, Any]) -> Any:
        """Around the model's rule by which ``generate`` places tokens."""
        state, seen = _held(given.get(CACHE))
        if state is None:
            return rule(ids, given)
        go_on(self._axes, state)
        prompt_ids = given.get("input_ids")
        ids = ids if prompt_ids is None or not prompt_ids.shape[1] else prompt_ids
        new = new_ids(ids, given.get("attention_mask"), seen)
        placed = None
        if new is not None:
            placed = of_turn(rule, model, state, seen, {**given, "input_ids": new})
            go_on(self._axes, state)
        if placed is None:
            return rule(ids, given)
        return torch.nn.functional.pad(placed, (seen, 0))  # generate looks at the last ones

    def placed(self, cache: Any, given: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a later pass on ``cache``, with the positions of its images where the
        caller calls the model and not ``generate``.
        """
        ids = given.get("input_ids")
        if not self._around or not isinstance(ids, Tensor) or given.get("position_ids") is not None:
            return given
        state, seen = _held(cache)
        if state is None:
            return given
        if ids.shape[1] > 1:
            go_on(self._axes, state)
        model = self._around[-1]
        placed = of_turn(getattr(model, POSITIONS_RULE), model, state, seen, given)
        if placed is None:
            return given
        go_on(self._axes, state)
        return {**given, "position_ids": placed}

    def behind_forgotten(self, cache: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A pass's inputs, with positions that count the tokens that its cache has forgotten. On
        several axes the offset counts them.
        """
        state, seen = _held(cache)
        if state is None or not state.tokens.shift or self._axes:
            return kwargs
        given = next(kwargs[name] for name in GIVEN if kwargs.get(name) is not None)
        if (places := kwargs.get("position_ids")) is None:
            places = torch.arange(seen, seen + given.shape[1], device=given.device)[None]
        return {**kwargs, "position_ids": places + state.tokens.shift}

    def note_places(self, state: CacheState, seen: int, inputs: Mapping[str, Any]) -> None:
        """Notes the positions of a pass, as the decoder was given them, where somebody asks."""
        if state.tokens.position is None:
            return
        given = next(inputs[name] for name in GIVEN if inputs.get(name) is not None)
        places = inputs.get("position_ids")
        if not isinstance(places, Tensor):
            places = torch.arange(seen - given.shape[1], seen, device=given.device)[None]
        places = places if places.ndim == 3 else places[None]
        places = places[1:] if len(places) == 4 else places  # the first of four is for masks
        state.tokens = state.tokens.place(places[:, 0])

    def note(self, state: CacheState, seen: int, inputs: Mapping[str, Any]) -> None:
        """Where a pass of the decoder ended. After a later turn the model's own note is of some
        turn alone, or of one before.
        """
        if not self._axes:
            return
        given = next(inputs[name] for name in GIVEN if inputs.get(name) is not None)
        note_positions(state, inputs.get("position_ids"), seen)
        if 1 < given.shape[1] < seen:
            go_on(self._axes, state)


def _held(cache: Any) -> tuple[CacheState | None, int]:
    """A compressed cache's state, and the tokens that it has seen; none of one that has seen none,
    or of a fixed one, whose count is on the device.
    """
    state = state_of(cache)
    seen = 0 if state is None else foveate_layers(cache)[0].seen
    return (state if seen else None), seen
