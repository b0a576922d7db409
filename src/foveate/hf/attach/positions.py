"""Positions of later turns, in models that place images on several axes (M-RoPE: Qwen-VL, GLM-V).

Such a model works out the positions of a conversation that it reads whole. On a cache it knows a
text's alone: of a new image in a later turn it lacks the grids of those before, and goes on as if
the image were text. So a later turn is placed as a conversation of its own, by the model's own
rule, and moved behind what the cache has seen: as ``generate`` asks that rule, as a caller gives a
turn to the model itself, and after every pass.
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
"""Among a state's ``extras``: how far the next token's position is ahead of its column, [b, 1]."""
ON_ONE_AXIS = "ahead_on_one_axis"
"""The same of a recorded prompt whose tokens stand on one axis, if the decoder was given positions:
some models count from 1.
"""

_TYPES, _MASK, _IDS = "mm_token_type_ids", "attention_mask", "input_ids"
_OTHERS = (*CACHE_NAMES, "position_ids", "inputs_embeds", "use_cache")
_BEFORE = 2  # tokens of text in front of a turn that is placed alone: some rules look one back


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
        return {**kwargs, "position_ids": _positions(kwargs, seen) + state.tokens.shift}

    def note(self, state: CacheState, seen: int, inputs: Mapping[str, Any]) -> None:
        """Where a pass of the decoder ended, and its positions, where somebody asks. After a later
        turn the model's own note is of some turn alone, or of one before.
        """
        if not self._axes and state.tokens.position is None:
            return
        count = given_tokens(inputs).shape[1]
        if self._axes:
            note_positions(state, inputs.get("position_ids"), seen)
            if 1 < count < seen:
                go_on(self._axes, state)
        if state.tokens.position is not None:
            places = _axes(_positions(inputs, seen - count))
            state.tokens = state.tokens.add_positions(places[:, 0])


def note_positions(state: CacheState, positions: Any, seen: int) -> None:
    """Notes where a pass ended whose last token is the ``seen``-th; ``positions`` are what the
    decoder was given, [b, t] or [axes, b, t], or None where it counts columns.
    """
    if not isinstance(positions, Tensor):
        none = torch.zeros(1, dtype=torch.int64, device="cpu")
        ahead = none if state.tokens.pad is None else torch.zeros_like(state.tokens.pad)
        state.note({AHEAD: ahead[:, None]})
        return
    state.note({AHEAD: _axes(positions)[..., -1:].amax(0) + 1 - seen})


def note_recorded(state: CacheState, seen: int) -> None:
    """Notes where a recorded prompt ended, in a model that places its tokens on one axis."""
    positions = state.turn.passes[-1].inputs.get("position_ids") if state.turn.passes else None
    if AHEAD not in state.tokens.extras and isinstance(positions, Tensor) and positions.ndim == 2:
        state.note({ON_ONE_AXIS: positions[:, -1:] + 1 - seen})


def go_on(modules: Mapping[str, Any], state: CacheState) -> None:
    """Has the model continue where the cache ends, wherever the offset that it noted comes from."""
    if (ahead := state.tokens.extras.get(AHEAD)) is None:
        return
    for name, module in modules.items():
        module.rope_deltas = ahead + state.tokens.padding(ahead)[:, None]
        state.note({name: module.rope_deltas})


def of_turn(
    rule: Rule, model: Any, state: CacheState, seen: int, given: Inputs
) -> Int[Tensor, "axes b n"] | None:
    """The positions of the new tokens of a later turn that brings images; None for any other turn,
    which the model places rightly by itself.

    Args:
        rule: the model's own, which places a whole conversation.
        model: whose rule it is.
        state: of the cache.
        seen: tokens that the cache has seen.
        given: the turn's inputs, with the ids of its new part; what else goes by tokens may be of
            the whole conversation.

    Raises:
        InvalidInput: it has more images than sizes of images, or images of other sizes.
        UnsupportedModel: the model's positions are not those of the turn alone, moved.
    """
    ids = given[_IDS]
    images = visual_tokens(model.config, ids)
    if images is None or not bool(images.any()):
        return None
    alone = {name: x for name, x in given.items() if name not in _OTHERS and x is not None}
    types = alone[_TYPES] if _TYPES in alone else _types(model.config, ids)
    mask = alone[_MASK] if _MASK in alone else torch.ones_like(ids)
    alone[_TYPES], alone[_MASK] = types[:, -ids.shape[1] :], mask[:, -ids.shape[1] :]
    try:
        placed, moved = _placed(rule, alone, _BEFORE), _placed(rule, alone, _BEFORE + 1)
    except (StopIteration, RuntimeError) as error:
        raise InvalidInput(
            "this turn's new tokens have more images than the inputs have sizes of images, or "
            "images of other sizes. Give the pixels and sizes of all images that this turn brings, "
            "and of no others: earlier ones are in the cache."
        ) from error
    if placed.ndim != 3:
        return None
    step = moved - placed  # 1; on 5.4.0 more in Qwen2.5-VL's times
    if not bool((step > 0).masked_select(alone[_MASK].bool()).all()):
        raise UnsupportedModel(
            f"{type(model).__name__} counts the images of a whole conversation in its positions, "
            "so those of a new image in a later turn do not follow from that turn. Read the whole "
            "conversation anew, or give position_ids."
        )
    return placed + step * (_starts(state, seen, placed) - _BEFORE)


def new_ids(ids: Any, mask: Any, seen: int) -> Int[Tensor, "b n"] | None:
    """Of the ids that ``generate`` was given, those that the cache has not seen: where the mask is
    longer than they are, all.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        return None
    whole = not isinstance(mask, Tensor) or mask.shape[1] == ids.shape[1]
    new = ids[:, seen:] if whole else ids
    return new if new.shape[1] else None


def _types(config: Any, ids: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """What processors say of each token: 0 text, 1 image, 2 video."""
    visual = visual_tokens(config, ids)
    video = ids == getattr(config, "video_token_id", None)
    return torch.zeros_like(ids) if visual is None else visual.to(ids) + (visual & video).to(ids)


def _placed(rule: Rule, alone: dict[str, Any], before: int) -> Tensor:
    """Where the rule puts a turn that comes after so many tokens of text."""
    text = {_IDS: _a_word(alone), _TYPES: 0, _MASK: 1}
    longer = {
        name: torch.nn.functional.pad(alone[name], (before, 0), value=value)
        for name, value in text.items()
    }
    return rule(longer[_IDS], alone | longer)[..., before:]


def _a_word(alone: Inputs) -> int:
    """An id of text, to stand in front."""
    words = alone[_IDS][(alone[_TYPES] == 0) & (alone[_MASK] != 0)]
    return int(words[-1]) if len(words) else 0


def _starts(state: CacheState, seen: int, like: Int[Tensor, "axes b n"]) -> Int[Tensor, "axes b 1"]:
    """Where each axis goes on. The first of four counts tokens, as masks do."""
    rows, pads = like.shape[1], state.tokens.padding(like[0])[:, None]
    ahead = state.tokens.extras.get(AHEAD, -pads)
    starts = torch.stack([_of_rows(seen + ahead.to(like), rows)] * like.shape[0])
    if like.shape[0] == 4:
        starts[0] = _of_rows(seen - pads, rows)
    return starts


def _of_rows(held: Int[Tensor, "r 1"], rows: int) -> Int[Tensor, "b 1"]:
    """Of a cache's rows those of the turn, which may be fewer: beams come later."""
    return held[:: max(1, len(held) // rows)]


def _positions(inputs: Mapping[str, Any], first: int) -> Tensor:
    """Those that the decoder was given, or the columns from ``first`` on."""
    positions, given = inputs.get("position_ids"), given_tokens(inputs)
    if isinstance(positions, Tensor):
        return positions
    return torch.arange(first, first + given.shape[1], device=given.device)[None]


def _axes(positions: Tensor) -> Int[Tensor, "axes b t"]:
    """Positions by axis. The first of four is the text's, for masks, and is left out."""
    axes = positions if positions.ndim == 3 else positions[None]
    return axes[1:] if len(axes) == 4 else axes


def _held(cache: Any) -> tuple[CacheState | None, int]:
    """A compressed cache's state, and the tokens that it has seen; none of one that has seen none,
    or of a fixed one, whose count is on the device.
    """
    state = state_of(cache)
    seen = 0 if state is None else foveate_layers(cache)[0].seen
    return (state if seen else None), seen
