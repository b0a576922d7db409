"""Positions of later turns, in models that place images on several axes (M-RoPE: Qwen-VL, GLM-V).

Such a model computes the positions of a conversation that it reads from its beginning. On a cache
it computes only text positions: for a new image in a later turn it lacks the grids of earlier
images, and treats the new one as text. So a later turn's positions are computed as those of a
conversation of its own, by the model's own rule, and shifted behind what the cache has seen: when
``generate`` calls that rule, when a caller passes a turn to the model itself, and after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.hooks import wrap
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers, state_of
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import CACHE, CACHE_NAMES, POSITIONS_RULE, given_tokens
from foveate.hf.model.modality import visual_tokens

Inputs = Mapping[str, Any]
Rule = Callable[[Tensor, dict[str, Any]], Tensor]
AHEAD = "ahead"
"""Key in a state's ``extras``: offset from a token's column to its position, for the next token,
[b, 1].
"""
ON_ONE_AXIS = "ahead_on_one_axis"
"""Key of the same offset for a recorded prompt with one-dimensional positions, if the decoder
received positions: some models count from 1.
"""

_TYPES, _MASK, _IDS = "mm_token_type_ids", "attention_mask", "input_ids"
_OTHERS = (*CACHE_NAMES, "position_ids", "inputs_embeds", "use_cache")
_BEFORE = 2  # text tokens put in front of a turn: some rules read the token before an image


class LaterTurns:
    """M-RoPE positions of later turns, for one model. ``offsets``: its modules with
    ``rope_deltas``. A no-op for models with one-dimensional positions.
    """

    def __init__(self, offsets: Mapping[str, nn.Module], path: DecoderPath):
        self._axes = {name: module for name, module in offsets.items() if module in path.modules}
        rules = [m for m in path.modules if self._axes and hasattr(m, POSITIONS_RULE)]
        self._with_rules, self._around = rules, [m for m in path.around if m in rules]

    def follow(self, undo: ExitStack) -> None:
        """Wrap the model's position rules so that they know the conversation, until ``undo`` is
        closed.
        """
        for module in self._with_rules:
            wrap(undo, module, POSITIONS_RULE, partial(self._by_rule, module))

    def _by_rule(self, model: Any, rule: Any, ids: Tensor, inputs: dict[str, Any]) -> Any:
        """Wrap the model's rule from which ``generate`` takes positions."""
        state, seen = _state_and_seen(inputs.get(CACHE))
        if state is None:
            return rule(ids, inputs)
        go_on(self._axes, state)
        prompt_ids = inputs.get("input_ids")
        ids = ids if prompt_ids is None or not prompt_ids.shape[1] else prompt_ids
        new = new_ids(ids, inputs.get("attention_mask"), seen)
        placed = None
        if new is not None:
            placed = compute_turn_positions(rule, model, state, seen, {**inputs, "input_ids": new})
            go_on(self._axes, state)
        if placed is None:
            return rule(ids, inputs)
        return torch.nn.functional.pad(placed, (seen, 0))  # generate uses the last ones only

    def add_positions(self, cache: Any, turn: dict[str, Any]) -> dict[str, Any]:
        """Add positions to the inputs of a later pass on ``cache`` that brings images, for callers
        that call the model instead of ``generate``.
        """
        ids = turn.get("input_ids")
        if not self._around or not isinstance(ids, Tensor) or turn.get("position_ids") is not None:
            return turn
        state, seen = _state_and_seen(cache)
        if state is None:
            return turn
        if ids.shape[1] > 1:
            go_on(self._axes, state)
        model = self._around[-1]
        placed = compute_turn_positions(getattr(model, POSITIONS_RULE), model, state, seen, turn)
        if placed is None:
            return turn
        go_on(self._axes, state)
        return {**turn, "position_ids": placed}

    def shift_positions(self, cache: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Shift the positions in a pass's inputs by the number of tokens that its cache has
        forgotten. With several axes the offset includes them.
        """
        state, seen = _state_and_seen(cache)
        if state is None or not state.tokens.shift or self._axes:
            return kwargs
        return {**kwargs, "position_ids": _positions(kwargs, seen) + state.tokens.shift}

    def note(self, state: CacheState, seen: int, inputs: Mapping[str, Any]) -> None:
        """Record where a pass of the decoder ended, and its positions, if positions are recorded.
        After a later turn the model's own offset is of that turn only, or of an earlier one.
        """
        if not self._axes and state.tokens.position is None:
            return
        count = given_tokens(inputs).shape[1]
        if self._axes:
            note_positions(state, inputs.get("position_ids"), seen)
            if 1 < count < seen:
                go_on(self._axes, state)
        if state.tokens.position is not None:
            positions = _axes(_positions(inputs, seen - count))
            state.tokens = state.tokens.add_positions(positions[:, 0])


def note_positions(state: CacheState, positions: Any, seen: int) -> None:
    """Record where a pass ended whose last token is the ``seen``-th. ``positions``: the decoder's
    ``position_ids``, [b, t] or [axes, b, t], or None if it counts columns.
    """
    if not isinstance(positions, Tensor):
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        ahead = zero if state.tokens.pad is None else torch.zeros_like(state.tokens.pad)
        state.note({AHEAD: ahead[:, None]})
        return
    state.note({AHEAD: _axes(positions)[..., -1:].amax(0) + 1 - seen})


def note_recorded(state: CacheState, seen: int) -> None:
    """Record where a recorded prompt ended, in a model with one-dimensional positions."""
    positions = state.turn.passes[-1].inputs.get("position_ids") if state.turn.passes else None
    if AHEAD not in state.tokens.extras and isinstance(positions, Tensor) and positions.ndim == 2:
        state.note({ON_ONE_AXIS: positions[:, -1:] + 1 - seen})


def go_on(modules: Mapping[str, Any], state: CacheState) -> None:
    """Set the model's offsets so that it continues where the cache ends."""
    if (ahead := state.tokens.extras.get(AHEAD)) is None:
        return
    for name, module in modules.items():
        module.rope_deltas = ahead + state.tokens.padding(ahead)[:, None]
        state.note({name: module.rope_deltas})


def compute_turn_positions(
    rule: Rule, model: Any, state: CacheState, seen: int, inputs: Inputs
) -> Int[Tensor, "axes b n"] | None:
    """Compute the positions of the new tokens of a later turn that brings images; None for any
    other turn, whose positions the model computes correctly.

    Args:
        rule: the model's own rule, for a complete conversation.
        model: the model of the rule.
        state: the state of the cache.
        seen: tokens that the cache has seen.
        inputs: the turn's inputs, with the ids of its new part; other tensors by token may cover
            the complete conversation.

    Raises:
        InvalidInput: it has more images than sizes of images, or images of other sizes.
        UnsupportedModel: the model's positions are not those of the turn alone, shifted.
    """
    ids = inputs[_IDS]
    images = visual_tokens(model.config, ids)
    if images is None or not bool(images.any()):
        return None
    alone = {name: x for name, x in inputs.items() if name not in _OTHERS and x is not None}
    types = alone[_TYPES] if _TYPES in alone else _types(model.config, ids)
    mask = alone[_MASK] if _MASK in alone else torch.ones_like(ids)
    alone[_TYPES], alone[_MASK] = types[:, -ids.shape[1] :], mask[:, -ids.shape[1] :]
    try:
        placed, moved = (
            _positions_after(rule, alone, _BEFORE),
            _positions_after(rule, alone, _BEFORE + 1),
        )
    except (StopIteration, RuntimeError) as error:
        raise InvalidInput(
            "this turn's new tokens have more images than the inputs have sizes of images, or "
            "images of other sizes. Give the pixels and sizes of all images that this turn brings, "
            "and of no others: earlier ones are in the cache."
        ) from error
    if placed.ndim != 3:
        return None
    step = moved - placed  # 1; transformers 5.4.0: more on Qwen2.5-VL's time axis
    if not bool((step > 0).masked_select(alone[_MASK].bool()).all()):
        raise UnsupportedModel(
            f"{type(model).__name__} counts the images of a whole conversation in its positions, "
            "so those of a new image in a later turn do not follow from that turn alone. Read the "
            "complete conversation again, or pass position_ids."
        )
    return placed + step * (_starts(state, seen, placed) - _BEFORE)


def new_ids(ids: Any, mask: Any, seen: int) -> Int[Tensor, "b n"] | None:
    """Return the ids passed to ``generate`` that the cache has not seen: all of them if the mask is
    longer than the ids.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        return None
    covers_cache = not isinstance(mask, Tensor) or mask.shape[1] == ids.shape[1]
    new = ids[:, seen:] if covers_cache else ids
    return new if new.shape[1] else None


def _types(config: Any, ids: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Compute the token types as processors do: 0 text, 1 image, 2 video."""
    visual = visual_tokens(config, ids)
    video = ids == getattr(config, "video_token_id", None)
    return torch.zeros_like(ids) if visual is None else visual.to(ids) + (visual & video).to(ids)


def _positions_after(rule: Rule, alone: dict[str, Any], before: int) -> Tensor:
    """Compute the positions of a turn after ``before`` text tokens."""
    text = {_IDS: _text_id(alone), _TYPES: 0, _MASK: 1}
    longer = {
        name: torch.nn.functional.pad(alone[name], (before, 0), value=value)
        for name, value in text.items()
    }
    return rule(longer[_IDS], alone | longer)[..., before:]


def _text_id(alone: Inputs) -> int:
    """Return an id of a text token, for padding in front."""
    text = alone[_IDS][(alone[_TYPES] == 0) & (alone[_MASK] != 0)]
    return int(text[-1]) if len(text) else 0


def _starts(state: CacheState, seen: int, like: Int[Tensor, "axes b n"]) -> Int[Tensor, "axes b 1"]:
    """Compute the start of each axis, [axes, b, 1]. The first of four axes counts tokens, as masks
    do.
    """
    rows, pads = like.shape[1], state.tokens.padding(like[0])[:, None]
    ahead = state.tokens.extras.get(AHEAD, -pads)
    starts = torch.stack([_of_rows(seen + ahead.to(like), rows)] * like.shape[0])
    if like.shape[0] == 4:
        starts[0] = _of_rows(seen - pads, rows)
    return starts


def _of_rows(values: Int[Tensor, "r 1"], rows: int) -> Int[Tensor, "b 1"]:
    """Select the rows of the turn from the cache's, which may be more: beams come later."""
    return values[:: max(1, len(values) // rows)]


def _positions(inputs: Mapping[str, Any], first: int) -> Tensor:
    """Return the decoder's ``position_ids``, or the columns from ``first`` on."""
    positions, tokens = inputs.get("position_ids"), given_tokens(inputs)
    if isinstance(positions, Tensor):
        return positions
    return torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]


def _axes(positions: Tensor) -> Int[Tensor, "axes b t"]:
    """Return the positions by axis, without the first of four, which is the text's, for masks."""
    axes = positions if positions.ndim == 3 else positions[None]
    return axes[1:] if len(axes) == 4 else axes


def _state_and_seen(cache: Any) -> tuple[CacheState | None, int]:
    """Return a compressed cache's state, and the number of tokens that it has seen. The state is
    None for a cache that has seen none, and for a fixed cache, whose count is on the device.
    """
    state = state_of(cache)
    seen = 0 if state is None else foveate_layers(cache)[0].seen
    return (state if seen else None), seen
