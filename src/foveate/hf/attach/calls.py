"""Hooks around a model's calls inside a ``compress()`` context: every prompt's cache is
converted.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.attach import checks
from foveate.hf.attach.bookkeeping import PassNotes
from foveate.hf.layer import fixed
from foveate.hf.layer.call_inputs import CallInputs, Declared, GenerateCall, NextPrompt
from foveate.hf.layer.call_turn import Call, CallTurn
from foveate.hf.layer.hooks import forget_compiled, named, put, restore_offsets, wrap
from foveate.hf.layer.indexed_layer import expansions, indexers, mask_evicted
from foveate.hf.layer.interface import Reader, intercept, pass_latents, readers, release
from foveate.hf.layer.projection import (
    EXPAND,
    attention_modules,
    hidden_states,
    output_projections,
    residual_norm,
    residual_readers,
    with_latents,
)
from foveate.hf.layer.state import Link
from foveate.hf.layer.support import (
    check_attention,
    compressible_layers,
    foveate_layers,
    known_state,
    state_of,
    text_config,
)
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import (
    CACHE,
    CACHE_NAMES,
    accept_both_names,
    cache_argument,
    given_cache,
    given_tokens,
    name_cache,
    take_cache,
)
from foveate.hf.model.modality import starts_in_runs
from foveate.hf.probe.questions import Asker
from foveate.hf.pruning.pruning import Pruner
from foveate.hf.pruning.requirements import RequestedOutputs
from foveate.policies.policy import Policy


class Calls:
    """Hooks on the calls of one model under one policy. ``notes`` records the passes of its caches.

    Prompts are intercepted where they pass through the decoder, whichever module around it was
    called. The modules around it contribute the tokens' ids, and ``generate`` the prompt's length.
    These facts belong to their call, and end with it, also if it raises. One call runs at a time:
    another thread's waits.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        policy: Policy,
        vision: Tensor | None,
        asker: Asker | None = None,
        strict: bool = False,
    ):
        self.model, self.policy = model, policy
        self.link = Link(strict)
        self.link.open = False  # until attach()
        self._next = NextPrompt(model.config, vision)
        self._config = text_config(model)
        self._path = find(model, self._config)
        decoder, layers = self._path.decoder, compressible_layers(self._config)
        if policy.reads_output_weight:
            self.link.projections = output_projections(decoder, layers)
        self._readers = residual_readers(decoder, layers) if policy.reads_residual_norm else {}
        self._attentions = attention_modules(decoder, layers) if policy.reads_hidden_states else {}
        self._pruner = Pruner(model, self._path, policy)
        self.prefills = False  # the caller reads only the last token's logits
        self._argument = cache_argument(decoder)
        self._reader = Reader(decoder, self.link)
        self._turn = CallTurn()
        self.notes = PassNotes(model, self._path, policy, self._next, self.link, asker, self._turn)
        self._inputs = CallInputs()  # of the innermost call
        self._undo = ExitStack()

    def attach(self) -> None:
        """Install the hooks on the model; if that fails, the model is restored."""
        check_attention(self.model)  # the model may have entered another block since
        decoder, around = self._path
        with ExitStack() as undo:
            undo.callback(setattr, self.link, "open", False)
            self.link.open = True
            undo.callback(self._remove_reader)
            self._reader = readers[id(self._config)] = Reader(decoder, self.link)
            undo.callback(release, self)
            intercept(self)
            forget_compiled(undo, self.model)
            for module in around:
                wrap(undo, module, "forward", partial(self._call_forward, self._call_outer, module))
            wrap(undo, decoder, "forward", partial(self._call_forward, self._call_decoder, decoder))
            undo.callback(decoder.register_forward_pre_hook(self._refuse_copies).remove)
            for index, reader in self._readers.items():
                hook = partial(self._note_residual, index)
                undo.callback(reader.register_forward_pre_hook(hook, with_kwargs=True).remove)
            self._follow_latents(undo, with_latents(decoder))
            for index, attention in self._attentions.items():
                hook = partial(self._note_hidden, index)
                undo.callback(attention.register_forward_pre_hook(hook, with_kwargs=True).remove)
            for module in self._path.modules:
                for name in checks.CONTINUOUS:
                    if hasattr(module, name):
                        wrap(undo, module, name, checks.refuse_continuous)
                if hasattr(module, "generate"):
                    wrap(undo, module, "generate", self._generate)
                    wrap(undo, module, "prepare_inputs_for_generation", self._prepare)
                put(undo, module, "__deepcopy__", partial(self._copy, module))
            self.notes.turns.follow(undo)
            self._pruner.follow(undo)
            accept_both_names(undo)
            self._undo = undo.pop_all()

    def _follow_latents(self, undo: ExitStack, expanding: dict[int, nn.Module]) -> None:
        """Leave the expansion of latents to the cache, and tell indexers what was evicted."""
        self.link.expansions, self.link.indexers = expansions(expanding), indexers(expanding)
        for module in expanding.values():
            wrap(undo, module, EXPAND, pass_latents)
        for indexer in self.link.indexers.values():
            hook = indexer.register_forward_pre_hook(mask_evicted, with_kwargs=True)
            undo.callback(hook.remove)

    def detach(self) -> None:
        """Restore the model; also if one of the restoring steps fails. The link is closed first, so
        hooks that an interrupt leaves behind do nothing.
        """
        self.link.open = False
        try:
            self._turn.settle()
        finally:
            self._undo.close()

    def _remove_reader(self) -> None:
        if readers.get(id(self._config)) is self._reader:
            del readers[id(self._config)]

    def _copy(self, module: nn.Module, memo: dict[int, Any]) -> Any:
        """Copy the model, or a part of it, without hooks."""
        self.detach()
        try:
            return copy.deepcopy(module, memo)
        finally:
            self.attach()

    def __reduce__(self) -> Any:
        raise UnsupportedModel(
            f"a {type(self.model).__name__} cannot be pickled inside a compress() block, because "
            "its hooks would be pickled, too. Leave the block first."
        )

    def expect(self, tokens: int) -> None:
        """Declare the length of the next prompt, unless ``generate`` does."""
        self._next.expected = Declared(tokens)

    # Around generate

    def _generate(self, generate: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.link.open:
            return generate(*args, **kwargs)
        call = self._turn.take(sys._getframe())
        try:
            if not self.link.open:  # another thread left the context meanwhile
                return generate(*args, **kwargs)
            self._inputs = call.inputs
            self._pruner.expect(given_cache(kwargs), call.outer is None)
            return self._answer(call.inputs, generate, *args, **kwargs)
        finally:
            self._pruner.leave()
            self._inputs = CallInputs() if call.outer is None else call.outer.inputs
            call.end()

    def _answer(self, call_inputs: CallInputs, generate: Any, *args: Any, **kwargs: Any) -> Any:
        checks.check_helpers(kwargs, self._path.modules)
        checks.check_settings(getattr(generate, "__self__", self.model), kwargs)
        call_inputs.declare(self.model.config, args, kwargs)
        if (cache := take_cache(kwargs)) is not None:
            kwargs[CACHE] = cache
        if (state := state_of(cache)) is not None:
            restore_offsets(self.notes.offsets, state)
        if call_inputs.of("generation").generation is not None:  # a model inside this one generates
            return generate(*args, **kwargs)
        call_inputs.generation = GenerateCall()
        output = generate(*args, **kwargs)
        if self.link.open:  # it may have been closed while custom_generate waited
            call_inputs.generation.check(self.model)
        self._next.expected = None
        name_cache(output)
        return output

    def _prepare(self, prepare: Any, *args: Any, **kwargs: Any) -> Any:
        """Wrap ``prepare_inputs_for_generation``. Some models drop a cache there and read all
        tokens again, because their rotation changes at a length (Phi-3's longrope): then the new
        cache is the prompt's.
        """
        cache, inputs = given_cache(kwargs), prepare(*args, **kwargs)
        generation = self._inputs.of("generation").generation
        call_inputs = self._inputs.of("length")
        if generation is None or state_of(cache) is None or given_cache(inputs) is not None:
            return inputs
        generation.cache = None
        keeps_all = self.policy.amount.everything
        includes_answer = keeps_all or self.policy.scope == "model" or self.policy.when.decodes
        if not keeps_all:
            logging.getLogger("foveate").warning(
                "%s drops its cache after %d tokens, where its rotation changes, and reads all of "
                "them again: %s compressed a second time.",
                type(self.model).__name__,
                foveate_layers(cache)[0].seen,
                "prompt and answer so far are" if includes_answer else "the prompt is",
            )
        if call_inputs.length is not None and not includes_answer:
            # the prompt alone is compressed again; the answer so far stays as it is
            call_inputs.length = Declared(call_inputs.length.tokens)
        return inputs

    # Around the forward of the decoder, and of the modules around it

    def _call_forward(
        self, through: Callable[..., Any], module: Any, forward: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Take the turn for one call of a module's ``forward``, and run it."""
        if not self.link.open:
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            return self._call_traced(through, module, forward, *args, **kwargs)
        call = self._turn.take(sys._getframe())
        try:
            self._inputs = call.inputs
            return through(call, module, forward, args, kwargs)
        except ValueError as error:
            checks.refuse_old_pixels(error, given_cache(kwargs))
            raise
        finally:
            self._pruner.leave()
            self._inputs = CallInputs() if call.outer is None else call.outer.inputs
            call.end()

    def _call_traced(
        self, through: Callable[..., Any], module: Any, forward: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a traced call, without a turn: a compiled step cannot wait, and Dynamo cannot trace
        ``try``.
        """
        outer = self._inputs
        self._inputs = CallInputs(outer)
        output = through(None, module, forward, args, kwargs)
        self._inputs = outer
        return output

    def _call_outer(
        self, call: Call | None, module: Any, forward: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        call_inputs, inputs = self._inputs, {**named(forward, args), **kwargs}
        ids = inputs.get("input_ids")
        if isinstance(ids, Tensor) and ids.ndim == 2:
            checks.check_tokens(ids, given_cache(inputs))
            outer = call_inputs.of("ids")
            call_inputs.frames = (
                outer.frames if ids is outer.ids else starts_in_runs(self.model.config, ids, inputs)
            )
            call_inputs.ids = ids
        if checks.trains(self._path.decoder, inputs):
            return self._name_cache(module, forward(*args, **kwargs))
        if self._pruner.stage is not None and call_inputs.of("of_tokens").of_tokens is None:
            enough = self.prefills or call_inputs.of("generation").generation is not None
            call_inputs.of_tokens = RequestedOutputs.of(module, inputs, enough)
        checks.check_cached(self._path.decoder, inputs)
        if call is not None:
            self._pruner.expect(given_cache(inputs), call.outer is None)
        if any(name in inputs for name in CACHE_NAMES):
            cache = take_cache(inputs)
            if (state := state_of(cache) or fixed.state_of(cache)) is not None:
                restore_offsets(self.notes.offsets, state)
            inputs = self.notes.turns.add_positions(cache, inputs)
            args, kwargs = (), inputs
            if cache is not None:
                kwargs[cache_argument(module)] = cache
        return self._name_cache(module, forward(*args, **kwargs))

    def _call_decoder(
        self, call: Call | None, decoder: Any, forward: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        call_inputs, kwargs = self._inputs, {**named(forward, args), **kwargs}
        checks.check_tokens(given_tokens(kwargs), given_cache(kwargs))
        if checks.trains(decoder, kwargs):
            return self._name_cache(decoder, self._read(call, forward, kwargs))
        checks.check_cached(decoder, kwargs)
        cache = take_cache(kwargs)
        if cache is None:
            cache = DynamicCache(config=self._config)
            kwargs["use_cache"] = True
        kwargs[self._argument] = cache
        self._pruner.leave()
        if _reads_again(call_inputs, cache):
            return self._read(call, forward, self.notes.turns.shift_positions(cache, kwargs))
        ongoing = self.notes.begin(call, call_inputs, cache, kwargs)
        if ongoing is not None:
            ongoing.reads = True
        kwargs = self.notes.turns.shift_positions(cache, kwargs)
        door = self._prune(call_inputs, cache, kwargs)
        output = self._read(call, forward, door)
        if fixed.state_of(cache) is None:
            self._pruner.note(known_state(cache), door)
            self._pruner.leave()
            self.notes.after(call_inputs, cache, kwargs)
        if ongoing is not None:
            ongoing.finish()
        return self._name_cache(decoder, output)

    def _read(self, call: Call | None, forward: Any, kwargs: dict[str, Any]) -> Any:
        """Call the decoder's own ``forward``."""
        reader = self._reader
        before = reader.call, reader.traced
        if call is None:  # Dynamo cannot trace ``try``
            reader.traced = True
            output = forward(**kwargs)
            reader.traced = before[1]
            return output
        try:
            reader.call = call
            return forward(**kwargs)
        finally:
            reader.call, reader.traced = before[0], False

    def _prune(self, call_inputs: CallInputs, cache: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of the tokens that remain after pruning."""
        if self._pruner.stage is None or fixed.state_of(cache) is not None:
            return kwargs
        requested = call_inputs.of("of_tokens").of_tokens or RequestedOutputs()
        return self._pruner.enter(
            known_state(cache), foveate_layers(cache)[0].seen, requested, kwargs
        )

    def _name_cache(self, module: Any, output: Any) -> Any:
        if module is self.model:
            name_cache(output)
        return output

    def _note_residual(self, index: int, module: Any, args: Any, kwargs: Any) -> None:
        self.link.residual_norms[index] = residual_norm(args, kwargs)

    def _note_hidden(self, index: int, module: Any, args: Any, kwargs: Any) -> None:
        self.link.hidden_states[index] = hidden_states(args, kwargs)

    def _refuse_copies(self, decoder: Any, args: Any) -> None:
        if decoder is not self._path.decoder:
            raise UnsupportedModel(
                f"this {type(decoder).__name__} was copied inside a compress() block. Copy the "
                "whole model, or copy before the block is entered."
            )


def _reads_again(call_inputs: CallInputs, cache: object) -> bool:
    """Return True for a pass of a prompt that is being read again."""
    state = state_of(cache)
    if state is None or state.reread is None:
        return False
    return call_inputs.of("rereads").rereads is state
