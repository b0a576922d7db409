"""Around a model's calls in a block: every prompt's cache becomes ours."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any, NoReturn

import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from foveate.backends.hf import fixed
from foveate.backends.hf.again import Given, Rereader, keeps_passes, read_again
from foveate.backends.hf.asked import Asker
from foveate.backends.hf.cache_layer import FoveateLayer
from foveate.backends.hf.decoder import find
from foveate.backends.hf.hooks import (
    forget_compiled,
    named,
    note_offsets,
    put,
    restore_offsets,
    wrap,
)
from foveate.backends.hf.interface import Reader, intercept, readers, release
from foveate.backends.hf.internals import (
    CACHE,
    CACHE_NAMES,
    POSITIONS_RULE,
    accept_both_names,
    cache_argument,
    name_cache,
    rope_offsets,
    take_cache,
)
from foveate.backends.hf.modality import given_visual_tokens, starts_in_runs, visual_tokens
from foveate.backends.hf.positions import go_on, new_ids, note_positions, of_turn
from foveate.backends.hf.projection import output_projections
from foveate.backends.hf.state import CacheState, Link
from foveate.backends.hf.stats import Stats
from foveate.backends.hf.support import (
    check_attention,
    compressible_layers,
    convert,
    foveate_layers,
    known_state,
    state_of,
    text_config,
)
from foveate.core.policy import Policy
from foveate.errors import InvalidInput, UnsupportedCache, UnsupportedModel

_GIVEN = ("input_ids", "inputs_embeds", "hidden_states")
"""What a decoder reads, by the names that it may have."""


class Calls:
    """The calls of one model under one policy. ``cache`` is that of the latest prompt, and
    ``length`` what was declared of the next one.

    Prompts are taken where they pass through the decoder, whichever module around it was called;
    those around it tell the tokens' ids, and ``generate`` the prompt's length. One call at a time:
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
        self.model, self.policy, self.vision, self.asker = model, policy, vision, asker
        self.link = Link(strict)
        self.cache: DynamicCache | None = None
        self.length: int | None = None
        self._config = text_config(model)
        self._place = find(model, self._config)
        if policy.reads_output_weight:
            places = compressible_layers(self._config)
            self.link.projections = output_projections(self._place.decoder, places)
        self._offsets = rope_offsets(model)
        self._axes = {name: m for name, m in self._offsets.items() if m in self._place.modules}
        self._argument = cache_argument(self._place.decoder)
        self._reader = Reader(self._place.decoder)
        self._ids: Tensor | None = None  # of the tokens that a module around the decoder reads
        self._frames: Tensor | None = None  # where frames and images begin in runs of them
        self._prompt: Tensor | None = None  # ids of the prompt that is being answered
        self._prompt_frames: Tensor | None = None
        self._asked: Asked | None = None
        self._turn = RLock()
        self._turns = 0  # taken by the decoder
        self._undo = ExitStack()

    def attach(self) -> None:
        """From now on the model's calls pass through here; if this fails the model is as it was."""
        check_attention(self.model)  # the model may have entered another block since
        decoder, around = self._place
        with ExitStack() as undo:
            undo.callback(self._close)
            self.link.open = True
            undo.callback(readers.pop, id(self._config), None)
            self._reader = readers[id(self._config)] = Reader(decoder)
            undo.callback(release, self)
            intercept(self)
            undo.callback(forget_compiled(self.model))
            for module in around:
                self._hook(undo, module, self._before_outer, None, self._left_outer)
            self._hook(undo, decoder, self._before, self._after, self._left)
            undo.callback(self.model.register_forward_hook(_named).remove)
            for module in self._place.modules:
                for name in _CONTINUOUS:
                    if hasattr(module, name):
                        undo.callback(wrap(module, name, _refuse_continuous))
                if hasattr(module, "generate"):
                    undo.callback(wrap(module, "generate", self._generate))
                if self._axes and hasattr(module, POSITIONS_RULE):
                    placing = partial(self._positions, module)
                    undo.callback(wrap(module, POSITIONS_RULE, placing))
                undo.callback(put(module, "__deepcopy__", partial(self._copied, module)))
            undo.callback(accept_both_names())
            self._undo = undo.pop_all()

    @staticmethod
    def _hook(undo: ExitStack, module: nn.Module, before: Any, after: Any, left: Any) -> None:
        undo.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        if after is not None:
            undo.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        undo.callback(module.register_forward_hook(left, always_call=True).remove)

    def detach(self) -> None:
        """The model is as it was; also where one of the steps back fails."""
        self._undo.close()

    def _close(self) -> None:
        self.link.open = False

    def _copied(self, module: nn.Module, memo: dict[int, Any]) -> Any:
        """A copy of the model, or of a part of it, that is in no block."""
        self.detach()
        try:
            return copy.deepcopy(module, memo)
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

    # Around generate

    def _generate(self, generate: Any, *args: Any, **kwargs: Any) -> Any:
        with self._turn:
            return self._generated(generate, *args, **kwargs)

    def _generated(self, generate: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_helpers(kwargs)
        _check_settings(getattr(generate, "__self__", self.model), kwargs)
        self._declare(args, kwargs)
        if (cache := take_cache(kwargs)) is not None:
            kwargs[CACHE] = cache
        if (state := state_of(cache)) is not None:
            restore_offsets(self._offsets, state)
        if self._asked is not None:  # a model inside the one that was asked
            return generate(*args, **kwargs)
        self._asked = Asked()
        try:
            output = generate(*args, **kwargs)
            self._asked.check(self.model)
        finally:
            self.length = self._asked = None
            self._prompt = self._prompt_frames = None
        name_cache(output)
        return output

    def _check_helpers(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("assistant_early_exit"):
            raise UnsupportedModel(
                "assistant_early_exit drafts with the same model and cache, which is being "
                "compressed. Use assistant_model or prompt_lookup_num_tokens."
            )
        if kwargs.get("assistant_model") in self._place.modules:
            raise InvalidInput(
                "assistant_model is the model itself, whose cache is being compressed. Give "
                "another model, or prompt_lookup_num_tokens."
            )

    def _declare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the prompt's length and ids. A model inside that generates knows the length best,
        and the one around it the ids.
        """
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        whole = kwargs.get("inputs_embeds") if ids is None else ids
        mask = kwargs.get("attention_mask")
        if isinstance(whole, Tensor) and whole.ndim >= 2:
            self.length = mask.shape[1] if mask is not None else whole.shape[1]
        if isinstance(ids, Tensor) and ids.ndim == 2:
            self._prompt = ids
            self._prompt_frames = starts_in_runs(self.model.config, ids, kwargs)

    def _positions(self, model: Any, rule: Any, ids: Tensor, given: dict[str, Any]) -> Any:
        """Around the model's rule by which ``generate`` places tokens (M-RoPE)."""
        state, seen = state_of(given.get(CACHE)), _seen(given.get(CACHE))
        if state is None or not seen:
            return rule(ids, given)
        go_on(self._axes, state)
        told = given.get("input_ids")
        ids = ids if told is None or not told.shape[1] else told
        new = new_ids(ids, given.get("attention_mask"), seen)
        placed = None
        if new is not None:
            placed = of_turn(rule, model, state, seen, {**given, "input_ids": new})
            go_on(self._axes, state)
        if placed is None:
            return rule(ids, given)
        return torch.nn.functional.pad(placed, (seen, 0))  # generate looks at the last ones

    def _place_turn(self, state: CacheState, seen: int, given: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a later pass, with the positions of its images where the caller calls the
        model and not ``generate``.
        """
        ids, models = given.get("input_ids"), self._place.around
        rules = [m for m in models if self._axes and hasattr(m, POSITIONS_RULE)]
        if not rules or not isinstance(ids, Tensor) or given.get("position_ids") is not None:
            return given
        if ids.shape[1] > 1:
            go_on(self._axes, state)
        placed = of_turn(getattr(rules[-1], POSITIONS_RULE), rules[-1], state, seen, given)
        if placed is None:
            return given
        go_on(self._axes, state)
        return {**given, "position_ids": placed}

    # Around the modules around the decoder

    def _before_outer(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**named(module, args), **kwargs}
        ids = given.get("input_ids")
        if isinstance(ids, Tensor) and ids.ndim == 2:
            _check_tokens(ids)
            if ids is not self._ids:
                self._frames = starts_in_runs(self.model.config, ids, given)
            self._ids = ids
        if _trains(self._place.decoder, given):
            return None
        _check_cached(self._place.decoder, given)
        if not any(name in given for name in CACHE_NAMES):
            return None
        cache = take_cache(given)
        if (state := _any_state(cache)) is not None:
            restore_offsets(self._offsets, state)
        if state is not None and (seen := _seen(cache)):
            given = self._place_turn(state, seen, given)
        return (), given if cache is None else {**given, cache_argument(module): cache}

    def _left_outer(self, module: Any, *_: Any) -> None:
        if module is self._place.modules[0]:
            self._ids = self._frames = None

    # Around the decoder

    def _before(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if decoder is not self._place.decoder:
            raise UnsupportedModel(
                f"this {type(decoder).__name__} was copied inside a compress() block. Copy the "
                "whole model, or copy before the block is entered."
            )
        self._take_turn()
        self._reader.reads = True
        kwargs = {**named(decoder, args), **kwargs}
        given = _check_tokens(*[kwargs[x] for x in _GIVEN if kwargs.get(x) is not None][:1])
        if _trains(decoder, kwargs):
            return (), kwargs
        _check_cached(decoder, kwargs)
        cache = take_cache(kwargs)
        if cache is None:
            cache = DynamicCache(config=self._config)
            kwargs["use_cache"] = True
        kwargs[self._argument] = cache
        if _reads_again(cache):
            return (), kwargs
        if (at_hand := fixed.state_of(cache)) is not None:
            self._relink(at_hand)
            restore_offsets(self._offsets, at_hand)
            return (), kwargs
        self._begin(cache, given, kwargs)
        return (), kwargs

    def _begin(self, cache: Any, given: Tensor, kwargs: dict[str, Any]) -> None:
        """What the cache has to know of a pass."""
        state, (rows, count) = self._converted(cache), given.shape[:2]
        seen = foveate_layers(cache)[0].seen
        self._arm(state, seen, seen + count, count - self._told(count))
        if state.prompt_end is not None:
            state.note_padding(kwargs.get("attention_mask"), rows, seen + count)
        vision = self._visual_tokens(state, seen, kwargs.get("input_ids"), given)
        frames = self._of_pass(self._frames, self._prompt_frames, state.prompt_end, seen, given)
        state.extend_vision(vision, None if vision is None else frames)
        if keeps_passes(self.policy) and state.prompt_end is not None:
            state.passes.append(Given.of(seen, kwargs))
        if seen and self._place.decoder is self.model:
            restore_offsets(self._offsets, state)

    def _visual_tokens(
        self, state: CacheState, seen: int, tokens: Tensor | None, given: Tensor
    ) -> Tensor | None:
        """Which of this pass's tokens are visual, by what the caller told or by the ids."""
        end, (rows, count) = state.prompt_end, given.shape[:2]
        if self.vision is None or end is None or seen >= self.vision.shape[-1]:
            ids = self._of_pass(self._ids, self._prompt, end, seen, given)
            ids = ids if tokens is None else tokens
            return visual_tokens(self.model.config, ids)
        columns = slice(seen, min(end, seen + count))
        found = given_visual_tokens(self.vision, rows, end, columns)
        drafted = count - found.shape[1]
        return torch.nn.functional.pad(found, (0, drafted)).to(given.device)

    @staticmethod
    def _of_pass(
        now: Tensor | None, prompt: Tensor | None, end: int | None, seen: int, given: Tensor
    ) -> Tensor | None:
        """What a module around the decoder was told of this pass's tokens, or ``generate`` of the
        prompt's; None where that is not one thing for every token that the decoder reads.
        """
        rows, count = given.shape[:2]
        if now is not None and now.shape == (rows, count):
            return now
        if prompt is None or prompt.shape[1] != end or rows % prompt.shape[0]:
            return None
        return prompt[:, seen : seen + count].repeat_interleave(rows // prompt.shape[0], 0)

    def _converted(self, cache: Any) -> CacheState:
        state = state_of(cache)
        if state is None:
            return convert(cache, self._config, self.policy, self.link)
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

    def _told(self, count: int) -> int:
        """How many of a pass's tokens have ids. Some models (GIT) put images before the text for
        which there are none, and which nobody counted who declared the prompt's length.
        """
        return count if self._ids is None else min(count, self._ids.shape[1])

    def _arm(self, state: CacheState, seen: int, end: int, without_ids: int) -> None:
        if not state.awaiting:
            return
        declared, self.length = self.length, None
        declared = None if declared is None else declared + without_ids
        if declared is not None and declared <= seen:
            raise InvalidInput(
                f"the prompt was declared {declared} tokens long, but the cache has seen {seen}."
            )
        state.prompt_end = end if declared is None else declared
        state.awaiting = False
        state.stats = Stats(state.policy.spec)

    def _after(self, decoder: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = kwargs.get(self._argument)
        if cache is None or _reads_again(cache):  # a training step has none
            return
        asked = self._asked is None or self._asked.is_about(cache)
        if fixed.state_of(cache) is not None:
            return
        if asked:
            self.cache = cache
        state, layers = known_state(cache), foveate_layers(cache)
        _check_all_took_part(self.model, layers)
        if state.prompt_end is not None and not layers[-1].armed:
            note_offsets(self._offsets, state)  # asking the model may change them
            self.read_again(cache)
            restore_offsets(self._offsets, state)
            _note_stats(cache)
            state.prompt_end = None
        note_offsets(self._offsets, state)
        if self._axes:
            self._note_positions(state, layers[0].seen, kwargs)

    def _note_positions(self, state: CacheState, seen: int, kwargs: dict[str, Any]) -> None:
        """Where a pass ended. After a later turn the model's own note is of some turn alone, or of
        one before.
        """
        given = next(kwargs[x] for x in _GIVEN if kwargs.get(x) is not None)
        note_positions(state, kwargs.get("position_ids"), seen)
        if 1 < given.shape[1] < seen:
            go_on(self._axes, state)

    def read_again(self, cache: DynamicCache) -> None:
        """Where the policy asks for it: feeds a prompt that was read once more."""
        state = known_state(cache)
        if state.reading.waits:
            read_again(Rereader(self._place.decoder, self._argument, self.asker), cache, state)

    def _left(self, *_: Any) -> None:
        """Also after an exception."""
        self._reader.reads = False
        if self._turns:
            self._turns -= 1
            self._turn.release()

    def _take_turn(self) -> None:
        """Not in what is traced: a compiled step waits for nobody."""
        if not torch.compiler.is_compiling():
            self._turn.acquire()
            self._turns += 1


def _check_tokens(given: Tensor | None = None) -> Tensor:
    """What a pass reads; raises InvalidInput if that is nothing."""
    if given is None or given.shape[1] == 0:
        raise InvalidInput("the prompt is empty: pass at least one token.")
    return given


def _trains(decoder: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether a pass is a training step that reads its whole input and leaves no cache: there is
    nothing to compress, and its loss and gradients are the stock ones.
    """
    alone = all(kwargs.get(name) is None for name in CACHE_NAMES)
    if not (alone and decoder.training and torch.is_grad_enabled()):
        return False
    return kwargs.get("use_cache") is False or _checkpoints(decoder)


def _checkpoints(decoder: nn.Module) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in decoder.modules())


def _check_cached(decoder: nn.Module, kwargs: Mapping[str, Any]) -> None:
    """Raises UnsupportedCache where nothing would hold what a pass reads."""
    name = str(getattr(getattr(decoder, "config", None), "_attn_implementation", ""))
    if name.startswith("paged|"):
        _refuse_continuous(None)
    if kwargs.get("use_cache") is False:
        raise UnsupportedCache(
            "use_cache=False, as trainers pass it when they evaluate, leaves no cache to compress. "
            "Leave it out, or call the model outside the block."
        )
    if decoder.training and _checkpoints(decoder):
        raise UnsupportedCache(
            "gradient checkpointing drops the cache of a model in training mode, so nothing is "
            "left to compress. Call model.eval() first."
        )


_CONTINUOUS = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")


def _refuse_continuous(original: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """In the place of what starts transformers' continuous batching."""
    what = getattr(original, "__name__", "continuous batching")
    raise UnsupportedCache(
        f"{what} (transformers' continuous batching) keeps all requests in one paged cache, which "
        "is not compressed. Call generate() with a padded batch, or serve the model with vLLM and "
        "Foveate's plug-in, which compresses pages."
    )


def _check_settings(model: Any, kwargs: Mapping[str, Any]) -> None:
    """What ``generate`` was told of its cache, there and in its configuration.

    Raises:
        UnsupportedCache: there would be none, or a paged one.
    """
    settings = kwargs.get("generation_config") or getattr(model, "generation_config", None)
    paged = kwargs.get("cache_implementation", getattr(settings, "cache_implementation", None))
    if paged == "paged":
        raise UnsupportedCache(
            "cache_implementation='paged' has generate() batch its requests continuously, in one "
            "paged cache, which is not compressed. Leave it out, or serve the model with vLLM and "
            "Foveate's plug-in, which compresses pages."
        )
    told = kwargs.get("use_cache")
    if told is False:
        raise UnsupportedCache(
            "use_cache=False was given to generate(), and leaves no cache to compress. Leave it "
            "out, or call it outside the block."
        )
    embedded = kwargs.get("inputs_embeds") is not None  # then generate() takes a cache anyway
    if told is None and not embedded and getattr(settings, "use_cache", None) is False:
        whose = "this" if kwargs.get("generation_config") else "the model's"
        raise UnsupportedCache(
            f"{whose} generation_config has use_cache=False, as trainers set it and checkpoints "
            "keep it, which leaves no cache to compress. Call generate(..., use_cache=True), or "
            "set model.generation_config.use_cache = True."
        )


def _named(module: nn.Module, args: Any, output: Any) -> None:
    name_cache(output)


def _reads_again(cache: object) -> bool:
    """Whether a pass is one in which a prompt is read again."""
    state = state_of(cache)
    return state is not None and state.again is not None


def _any_state(cache: object) -> CacheState | None:
    """Of a compressed cache, or of a fixed one."""
    return state_of(cache) or fixed.state_of(cache)


def _seen(cache: Any) -> int:
    """Tokens that a compressed cache has seen; 0 for a fixed one, whose count is on the device."""
    return foveate_layers(cache)[0].seen if state_of(cache) is not None else 0


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
        """Raises UnsupportedModel if the decoder was never called."""
        if self.cache is None:
            raise UnsupportedModel(
                f"{type(model).__name__}.generate() answered without a call of the model's "
                "decoder, so nothing was compressed."
            )


def _note_stats(cache: DynamicCache) -> None:
    """What was kept of the prompt that has just been read."""
    state, layers = known_state(cache), foveate_layers(cache)
    for layer in layers:
        layer.cut_to_bytes()
    asked = state.reading.asked
    state.stats = Stats(state.policy.spec, [layer.stats() for layer in layers], asked)


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
