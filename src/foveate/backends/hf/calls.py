"""Around a model's calls in a block: every prompt's cache becomes ours."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from foveate.backends.hf import fixed
from foveate.backends.hf.cache_layer import FoveateLayer
from foveate.backends.hf.hooks import named, note_offsets, put, restore_offsets, wrap
from foveate.backends.hf.internals import (
    CACHE,
    accept_both_names,
    cache_argument,
    name_cache,
    rope_offsets,
    set_attention,
    take_cache,
)
from foveate.backends.hf.modality import given_visual_tokens, visual_tokens
from foveate.backends.hf.registry import NAMES, Reader, readers
from foveate.backends.hf.state import CacheState, Link
from foveate.backends.hf.stats import Stats
from foveate.backends.hf.support import (
    attention_of,
    convert,
    foveate_layers,
    known_state,
    state_of,
    text_config,
)
from foveate.core.policy import Policy
from foveate.errors import InvalidInput, UnsupportedCache, UnsupportedModel


class Calls:
    """The calls of one model under one policy. ``cache`` is that of the latest prompt, and
    ``length`` what was declared of the next one.
    """

    def __init__(self, model: PreTrainedModel, policy: Policy, vision: Tensor | None):
        self.model, self.policy, self.vision = model, policy, vision
        self.link = Link()
        self.cache: DynamicCache | None = None
        self.length: int | None = None
        self._offsets = rope_offsets(model)
        self._argument = cache_argument(model)
        self._undo = ExitStack()
        self._reader = Reader(model)
        self._asked: Asked | None = None

    def attach(self) -> None:
        """From now on the model's calls pass through here; if this fails the model is as it was."""
        model, config = self.model, text_config(self.model)
        own = attention_of(model)  # the model may have entered another block since
        with ExitStack() as undo:
            undo.callback(self._close)
            self.link.open = True
            undo.callback(readers.pop, id(config), None)
            self._reader = readers[id(config)] = Reader(model)
            undo.callback(set_attention, config, own)
            set_attention(config, NAMES[own])
            before, after = model.register_forward_pre_hook, model.register_forward_hook
            undo.callback(before(self._before_forward, with_kwargs=True).remove)
            undo.callback(after(self._after_forward, with_kwargs=True).remove)
            undo.callback(after(self._left_forward, always_call=True).remove)
            undo.callback(wrap(model, "generate", self._generate))
            undo.callback(put(model, "__deepcopy__", self._copied))
            undo.callback(accept_both_names())
            self._undo = undo.pop_all()

    def detach(self) -> None:
        """The model is as it was; also where one of the steps back fails."""
        self._undo.close()

    def _close(self) -> None:
        self.link.open = False

    def _copied(self, memo: dict[int, Any]) -> Any:
        """A copy of the model that is in no block."""
        self.detach()
        try:
            return copy.deepcopy(self.model, memo)
        finally:
            self.attach()

    def __reduce__(self) -> Any:
        raise UnsupportedModel(
            f"a {type(self.model).__name__} cannot be pickled inside a compress() block, whose "
            "hooks would go along. Leave the block first."
        )

    def adopt(self, cache: DynamicCache) -> None:
        """Makes a cache that holds a finished prompt the latest one."""
        self.cache = cache
        _note_stats(cache)

    def _generate(self, generate: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("assistant_early_exit"):
            raise UnsupportedModel(
                "assistant_early_exit drafts with the same model and cache, which is being "
                "compressed. Use assistant_model or prompt_lookup_num_tokens."
            )
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        whole = kwargs.get("inputs_embeds") if ids is None else ids
        mask = kwargs.get("attention_mask")
        if whole is not None:
            self.length = mask.shape[1] if mask is not None else whole.shape[1]
        if (cache := take_cache(kwargs)) is not None:
            kwargs[CACHE] = cache
        if (state := state_of(cache)) is not None:
            restore_offsets(self._offsets, state)
        if kwargs.get("assistant_model") is self.model:
            raise InvalidInput(
                "assistant_model is the model itself, whose cache is being compressed. Give "
                "another model, or prompt_lookup_num_tokens."
            )
        self._asked = Asked()
        try:
            output = generate(*args, **kwargs)
            self._asked.check(self.model)
        finally:
            self.length = self._asked = None
        name_cache(output)
        return output

    def _before_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._reader.reads = True
        kwargs = {**named(model, args), **kwargs}
        tokens = kwargs.get("input_ids")
        given = tokens if tokens is not None else kwargs.get("inputs_embeds")
        if given is None or given.shape[1] == 0:
            raise InvalidInput("the prompt is empty: pass at least one token.")
        if kwargs.get("use_cache") is False:
            raise UnsupportedCache("use_cache=False leaves no cache to compress. Leave it out.")
        cache = take_cache(kwargs)
        if cache is None:
            cache = DynamicCache(config=model.config)
            kwargs["use_cache"] = True
        kwargs[self._argument] = cache
        if (at_hand := fixed.state_of(cache)) is not None:
            self._relink(at_hand)
            restore_offsets(self._offsets, at_hand)
            return (), kwargs
        state = self._converted(cache)
        seen = foveate_layers(cache)[0].seen
        self._arm(state, seen, seen + given.shape[1])
        state.extend_vision(self._visual_tokens(state, seen, tokens, given))
        if seen:
            restore_offsets(self._offsets, state)
        return (), kwargs

    def _visual_tokens(
        self, state: CacheState, seen: int, tokens: Tensor | None, given: Tensor
    ) -> Tensor | None:
        """Which of this pass's tokens are visual, by what the caller told or by the ids."""
        end = state.prompt_end
        if self.vision is None or end is None or seen >= self.vision.shape[-1]:
            return visual_tokens(self.model.config, tokens)
        columns = slice(seen, min(end, seen + given.shape[1]))
        found = given_visual_tokens(self.vision, given.shape[0], end, columns)
        drafted = given.shape[1] - found.shape[1]
        return torch.nn.functional.pad(found, (0, drafted)).to(given.device)

    def _converted(self, cache: Any) -> CacheState:
        state = state_of(cache)
        if state is None:
            return convert(cache, text_config(self.model), self.policy, self.link)
        self._relink(state)
        return state

    def _relink(self, state: CacheState) -> None:
        if state.link is not self.link:
            if state.link.open or state.policy != self.policy:
                raise UnsupportedCache(
                    f"this cache was compressed under {state.policy} in another compress() block; "
                    f"this block's policy is {self.policy}."
                )
            state.link = self.link

    def _arm(self, state: CacheState, seen: int, end: int) -> None:
        if not state.awaiting:
            return
        declared, self.length = self.length, None
        if declared is not None and declared <= seen:
            raise InvalidInput(
                f"the prompt was declared {declared} tokens long, but the cache has seen {seen}."
            )
        state.prompt_end = end if declared is None else declared
        state.awaiting = False
        state.stats = Stats(state.policy.spec)

    def _after_forward(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        name_cache(output)
        cache = kwargs[self._argument]
        asked = self._asked is None or self._asked.is_about(cache)
        if fixed.state_of(cache) is not None:
            return
        if asked:
            self.cache = cache
        state, layers = known_state(cache), foveate_layers(cache)
        _check_all_took_part(model, layers)
        if state.prompt_end is not None and not layers[-1].armed:
            _note_stats(cache)
            state.prompt_end = None
        note_offsets(self._offsets, state)

    def _left_forward(self, *_: Any) -> None:
        """Also after an exception."""
        self._reader.reads = False


@dataclass
class Asked:
    """One call of ``generate``. It may read more than its prompt, such as the negative prompt of
    ``guidance_scale``: the first cache is the prompt's.
    """

    cache: DynamicCache | None = None

    def is_about(self, cache: DynamicCache) -> bool:
        """Whether this is the prompt's cache."""
        if self.cache is None:
            self.cache = cache
        return cache is self.cache

    def check(self, model: nn.Module) -> None:
        """Raises UnsupportedModel if the model's own ``forward`` was never called."""
        if self.cache is None:
            raise UnsupportedModel(
                f"{type(model).__name__}.generate() answered without a call of the model's own "
                "forward(), so nothing was compressed. Give the model inside it that generates to "
                "compress(), such as model.language_model or model.thinker."
            )


def _note_stats(cache: DynamicCache) -> None:
    """What was kept of the prompt that has just been read."""
    state, layers = known_state(cache), foveate_layers(cache)
    state.stats = Stats(state.policy.spec, [layer.stats() for layer in layers])


def _check_all_took_part(model: nn.Module, layers: list[FoveateLayer]) -> None:
    """Raises UnsupportedModel, with what was seen, if a layer's keys did not pass through here."""
    empty = [layer.model_index for layer in layers if not layer.is_initialized]
    unread = [layer.model_index for layer in layers if layer.is_initialized and not layer.linked]
    for seen, which in (
        ("wrote nothing into the cache that it was given", empty),
        (
            "attended by another way than transformers' attention interface, or to other keys than "
            "those that the cache returned",
            unread,
        ),
    ):
        if which:
            raise UnsupportedModel(
                f"{type(model).__name__} (transformers {transformers.__version__}) was not "
                f"compressed: in layers {which} it {seen}. What these layers answer cannot be "
                "vouched for."
            )
