"""Bookkeeping of a cache around every pass: before it, its tokens; after it, its statistics."""

from __future__ import annotations

import sys
from typing import Any

from transformers import DynamicCache, PreTrainedModel

from foveate.errors import UnsupportedCache
from foveate.hf.attach.checks import check_all_took_part, check_rows
from foveate.hf.attach.model_policy import divide_for_prompt
from foveate.hf.attach.mrope import LaterTurns
from foveate.hf.layer import fixed
from foveate.hf.layer.call_inputs import CallInputs, NextPrompt
from foveate.hf.layer.call_turn import Call, CallTurn
from foveate.hf.layer.hooks import note_offsets, restore_offsets
from foveate.hf.layer.state import CacheState, Link, Ongoing
from foveate.hf.layer.stats import Stats, counted
from foveate.hf.layer.support import convert, foveate_layers, known_state, state_of, text_config
from foveate.hf.model import token_selection
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import given_tokens, rope_offsets
from foveate.hf.model.module_state import ModuleStates
from foveate.hf.probe.questions import Asker
from foveate.hf.probe.reprefill import keeps_passes, note_pass, read_again
from foveate.policies.policy import Policy


class PassNotes:
    """Records of the passes of one model's caches under one policy. ``latest`` is the cache of the
    latest prompt.

    Args:
        model: the model whose calls these are.
        path: the decoder, and the modules around it.
        policy: the policy of the caches.
        following: facts about the next prompt.
        link: the link of caches and context.
        asker: asks the follow-up questions of a policy that reads again; None without one.
        turn: the turn of the model's calls.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        path: DecoderPath,
        policy: Policy,
        following: NextPrompt,
        link: Link,
        asker: Asker | None,
        turn: CallTurn,
    ):
        self.latest: DynamicCache | None = None
        self.offsets = rope_offsets(model)
        self.turns = LaterTurns(self.offsets, path)
        self._model, self._path, self._policy, self._next = model, path, policy, following
        self._link, self._asker, self._turn = link, asker, turn
        self._config = text_config(model)

    def begin(
        self, call: Call | None, call_inputs: CallInputs, cache: Any, kwargs: dict[str, Any]
    ) -> Ongoing | None:
        """Record a pass before it is read: its images, padding, and the prompt that it begins."""
        if (fixed_state := fixed.state_of(cache)) is not None:
            self._relink(fixed_state)
            ongoing = _begin(call, fixed_state)
            restore_offsets(self.offsets, fixed_state)
            return ongoing
        state, tokens = self._convert(cache), given_tokens(kwargs)
        rows, count = tokens.shape[:2]
        ongoing, first = _begin(call, state), foveate_layers(cache)[0]
        seen = first.seen
        if seen and count > 1:
            check_rows(first.pairs.counts.shape[0], rows)
        end = None
        if state.turn.awaiting:
            end = self._next.end(call_inputs, ongoing, seen, count)
            state.arm(end)
        if state.turn.end is not None:
            state.note_padding(kwargs.get("attention_mask"), rows, seen + count)
        if end is not None and self._policy.left_open:
            pads = state.padding(
                token_selection.given_mask(kwargs), rows, seen, count, tokens.device
            )
            divide_for_prompt(self._model, state, [end - pad for pad in pads.tolist()], end)
        vision = self._next.visual_tokens(call_inputs, state.turn.end, seen, tokens)
        frames = call_inputs.of_pass("frames", state.turn.end, seen, tokens)
        state.tokens = state.tokens.extend(vision, frames, state.turn.coming)
        state.update_turn(coming=None)
        if keeps_passes(self._policy) and state.turn.end is not None:
            note_pass(state, seen, kwargs)
        if seen and self._path.decoder is self._model:
            restore_offsets(self.offsets, state)
        return ongoing

    def _convert(self, cache: Any) -> CacheState:
        state = state_of(cache)
        if state is None:
            return convert(cache, self._config, self._policy, self._link)
        self._relink(state)
        return state

    def _relink(self, state: CacheState) -> None:
        if state.link is not self._link:
            if state.link.open or state.undivided != self._policy:
                raise UnsupportedCache(
                    f"this cache was compressed under {state.undivided} in another compress() "
                    f"block; this block's policy is {self._policy}."
                )
            state.link = self._link

    def adopt(self, cache: DynamicCache) -> None:
        """Make a cache with a finished prompt the latest one."""
        self.latest = cache
        _note_stats(cache)

    def after(self, call_inputs: CallInputs, cache: DynamicCache, kwargs: dict[str, Any]) -> None:
        """Record a pass after it was read: at the prompt's end, its statistics."""
        state, layers = known_state(cache), foveate_layers(cache)
        check_all_took_part(self._model, layers)
        state.start_pass()  # or every fork would copy this pass's mask
        if state.turn.end is not None:
            self.read_again(cache)
        if state.turn.end is not None and not layers[-1].armed:
            for layer in layers:
                layer.settle()
            _note_stats(cache)
            state.update_turn(end=None)
        note_offsets(self.offsets, state)
        self.turns.note(state, layers[0].seen, kwargs)
        generation = call_inputs.of("generation").generation
        if generation is None or generation.is_about(cache):
            self.latest = cache

    def read_again(self, cache: DynamicCache) -> None:
        """Read a prompt once more, if the policy needs it; restore the state of the model's modules
        afterwards.
        """
        state = known_state(cache)
        if not state.reading.waits:
            return
        call = self._turn.take(sys._getframe())
        try:
            call.undo, call.inputs.rereads = ModuleStates(self._model), state
            read_again(self._path.decoder, self._asker, cache)
        finally:
            call.end()


def _begin(call: Call | None, state: CacheState) -> Ongoing | None:
    """Begin a pass of a cache. A traced call records nothing: its side effects happen all at once,
    after the graph.
    """
    if call is None:
        return None
    call.undo = ongoing = state.begin()
    return ongoing


def _note_stats(cache: DynamicCache) -> None:
    """Store the statistics of the prompt that has just been read."""
    state, layers = known_state(cache), foveate_layers(cache)
    for layer in layers:
        layer.cut_to_bytes()
    requested = state.reading.requested
    noted = counted(state.reading.notes)
    of_layers = [layer.stats() for layer in layers]
    stats = Stats(state.policy.spec, of_layers, requested, noted, state.visual_counts())
    state.update_turn(stats=stats)
