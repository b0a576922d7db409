"""What a cache is told of every pass: before it, what it reads; after it, what was kept."""

from __future__ import annotations

import sys
from typing import Any

from transformers import DynamicCache, PreTrainedModel

from foveate.errors import UnsupportedCache
from foveate.hf.attach.checks import check_all_took_part, check_rows
from foveate.hf.attach.model_policy import divide_for_prompt
from foveate.hf.attach.positions import LaterTurns
from foveate.hf.layer import fixed
from foveate.hf.layer.hooks import note_offsets, restore_offsets
from foveate.hf.layer.next_prompt import CallInputs, NextPrompt
from foveate.hf.layer.state import CacheState, Link, Ongoing
from foveate.hf.layer.stats import Stats, counted
from foveate.hf.layer.support import convert, foveate_layers, known_state, state_of, text_config
from foveate.hf.layer.turns import Call, CallTurn
from foveate.hf.model import cutting
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import given_tokens, rope_offsets
from foveate.hf.model.undone import ModuleStates
from foveate.hf.probe.follow_up import Asker
from foveate.hf.probe.reprefill import keeps_passes, note_pass, read_again
from foveate.policies.policy import Policy


class PassNotes:
    """What the caches of one model are told under one policy. ``latest`` is the cache of the
    latest prompt.

    Args:
        model: whose calls these are, and its decoder's ``place`` in it.
        policy: what to keep.
        following: of the prompt that comes next.
        link: what layers and block share.
        asker: asks the follow-up questions of a policy that reads again; None without one.
        turn: of the model's calls, one at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        place: DecoderPath,
        policy: Policy,
        following: NextPrompt,
        link: Link,
        asker: Asker | None,
        turn: CallTurn,
    ):
        self.latest: DynamicCache | None = None
        self.offsets = rope_offsets(model)
        self.turns = LaterTurns(self.offsets, place)
        self._model, self._place, self._policy, self._next = model, place, policy, following
        self._link, self._asker, self._turn = link, asker, turn
        self._config = text_config(model)

    def begin(
        self, call: Call | None, call_inputs: CallInputs, cache: Any, kwargs: dict[str, Any]
    ) -> Ongoing | None:
        """What the cache has to know of a pass."""
        if (at_hand := fixed.state_of(cache)) is not None:
            self._relink(at_hand)
            ongoing = _begun(call, at_hand)
            restore_offsets(self.offsets, at_hand)
            return ongoing
        state, given = self._converted(cache), given_tokens(kwargs)
        rows, count = given.shape[:2]
        ongoing, first = _begun(call, state), foveate_layers(cache)[0]
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
            pads = state.padding(cutting.given_mask(kwargs), rows, seen, count, given.device)
            divide_for_prompt(self._model, state, [end - pad for pad in pads.tolist()], end)
        vision = self._next.visual_tokens(call_inputs, state.turn.end, seen, given)
        frames = call_inputs.of_pass("frames", state.turn.end, seen, given)
        state.tokens = state.tokens.extend(vision, frames, state.turn.coming)
        state.update_turn(coming=None)
        if keeps_passes(self._policy) and state.turn.end is not None:
            note_pass(state, seen, kwargs)
        if seen and self._place.decoder is self._model:
            restore_offsets(self.offsets, state)
        return ongoing

    def _converted(self, cache: Any) -> CacheState:
        state = state_of(cache)
        if state is None:
            return convert(cache, self._config, self._policy, self._link)
        self._relink(state)
        return state

    def _relink(self, state: CacheState) -> None:
        if state.link is not self._link:
            if state.link.open or state.given != self._policy:
                raise UnsupportedCache(
                    f"this cache was compressed under {state.given} in another compress() block; "
                    f"this block's policy is {self._policy}."
                )
            state.link = self._link

    def adopt(self, cache: DynamicCache) -> None:
        """Makes a cache that holds a finished prompt the latest one."""
        self.latest = cache
        _note_stats(cache)

    def after(self, call_inputs: CallInputs, cache: DynamicCache, kwargs: dict[str, Any]) -> None:
        """What the cache has to know once a pass is over."""
        state, layers = known_state(cache), foveate_layers(cache)
        check_all_took_part(self._model, layers)
        state.start_pass()  # what was known of this one alone: masks would be copied by every fork
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
        """Where the policy asks for it: feeds a prompt that was read once more. The model's modules
        are afterwards as they were.
        """
        state = known_state(cache)
        if not state.reading.waits:
            return
        call = self._turn.take(sys._getframe())
        try:
            call.undo, call.inputs.rereads = ModuleStates(self._model), state
            read_again(self._place.decoder, self._asker, cache)
        finally:
            call.end()


def _begun(call: Call | None, state: CacheState) -> Ongoing | None:
    """The pass that a cache takes part in from now on; not noted in what is traced, whose effects
    come all at once.
    """
    if call is None:
        return None
    call.undo = ongoing = state.begin()
    return ongoing


def _note_stats(cache: DynamicCache) -> None:
    """What was kept of the prompt that has just been read."""
    state, layers = known_state(cache), foveate_layers(cache)
    for layer in layers:
        layer.cut_to_bytes()
    requested = state.reading.requested
    noted = counted(state.reading.notes)
    of_layers = [layer.stats() for layer in layers]
    stats = Stats(state.policy.spec, of_layers, requested, noted, state.visual_counts())
    state.update_turn(stats=stats)
