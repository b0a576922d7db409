"""``with foveate.compress(model, policy) as session:`` - attaches on entry, restores on exit."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from foveate.backends.hf import fixed, persist
from foveate.backends.hf.around import named, note_offsets, restore_offsets, with_offsets, wrap
from foveate.backends.hf.attention import NAMES
from foveate.backends.hf.held import held_share
from foveate.backends.hf.modality import given_visual_tokens, visual_tokens
from foveate.backends.hf.state import CacheState, Link
from foveate.backends.hf.stats import Stats
from foveate.backends.hf.support import (
    check_model,
    check_profiles,
    convert,
    foveate_layers,
    state_of,
    text_config,
)
from foveate.core.composition import policy as policy_of
from foveate.core.errors import (
    InvalidInput,
    NothingCompressed,
    UnsupportedCache,
    UnsupportedModel,
)
from foveate.core.policy import Policy


def compress(model: nn.Module, policy: Policy | str, *, vision: Tensor | None = None) -> Session:
    """A block inside which every prompt that ``model`` reads is compressed as ``policy`` says.

    For inference: gradients do not flow through the cache. On exit, also after an exception, the
    model is as it was.

    Args:
        model: any transformers decoder, text or vision-language, with "sdpa" or "eager" attention.
        policy: a policy, or its spec string.
        vision: True at visual tokens of the prompt, [batch, tokens]. Only needed with
            ``inputs_embeds``; otherwise it is read off ``input_ids``.

    Raises:
        UnsupportedModel: the model's cache cannot be compressed exactly; the message says why.
        ProfileMismatch: the policy was calibrated on another model.
        AlreadyCompressing: the model is inside another block (raised on entry).
    """
    return Session(model, policy_of(policy), vision)


class Session:
    """One ``compress`` block."""

    def __init__(self, model: nn.Module, policy: Policy, vision: Tensor | None = None):
        self.model: PreTrainedModel = check_model(model)
        check_profiles(policy, self.model)
        self.policy = policy
        self._vision = vision
        self.link = Link()
        self._offsets = with_offsets(self.model)
        self._length: int | None = None  # declared length of the prompt that comes next
        self._cache: DynamicCache | None = None
        self._undo: list[Any] = []

    # Attaching

    def __enter__(self) -> Session:
        check_model(self.model)
        self.link.open = True
        config = text_config(self.model)
        own = config._attn_implementation
        config._attn_implementation_internal = NAMES[own]
        self._undo.append(lambda: setattr(config, "_attn_implementation_internal", own))
        before = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        after = self.model.register_forward_hook(self._after_forward, with_kwargs=True)
        self._undo += [before.remove, after.remove]
        self._undo.append(wrap(self.model, "generate", self._generate))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.link.open = False
        while self._undo:
            self._undo.pop()()

    # Results

    @property
    def cache(self) -> DynamicCache:
        """The cache of the latest prompt.

        Raises:
            NothingCompressed: no prompt has been read in this block.
        """
        if self._cache is None:
            raise NothingCompressed(
                "no prompt has been read in this block yet: call model.generate(...), "
                "model(...) or session.prefill(...) inside it."
            )
        return self._cache

    @property
    def stats(self) -> Stats:
        """What was kept of the latest prompt, per layer and head, in bytes and in seconds."""
        return self._state(self.cache).stats

    @property
    def bytes_held(self) -> int:
        """Bytes that the compressed layers of the latest cache hold now."""
        return sum(layer.nbytes for layer in foveate_layers(self.cache))

    def held_share(self) -> Tensor:
        """How widely each token of the latest cache is held now: for pictures of what was kept.

        Returns:
            Float32 [b, tokens seen], between 0 and 1: of all KV heads of all compressible layers,
            the share whose pairs include this token's.
        """
        return held_share(foveate_layers(self.cache))

    # Contexts that are used again

    def expect(self, tokens: int) -> None:
        """Declares the length of the prompt that comes next, padding included.

        Only needed when you call the model yourself, chunk by chunk; ``generate`` declares it.
        """
        if tokens < 1:
            raise InvalidInput(f"a prompt of {tokens} tokens is empty.")
        self._length = tokens

    def prefill(self, **inputs: Any) -> DynamicCache:
        """Reads and compresses a context; returns its cache, ready for questions.

        Pass it on with ``model.generate(**whole, past_key_values=session.fork(cache))``, where
        ``whole`` holds the context's tokens and the question's.
        """
        cache = inputs.pop("past_key_values", None) or DynamicCache(config=self.model.config)
        parameters = inspect.signature(self.model.forward).parameters
        if "logits_to_keep" in parameters:
            inputs.setdefault("logits_to_keep", 1)
        with torch.no_grad():
            self.model(**inputs, past_key_values=cache, use_cache=True)
        return cache

    def fork(self, cache: DynamicCache | None = None) -> DynamicCache:
        """An independent copy of a compressed cache, so that one context serves many questions."""
        return copy.deepcopy(self.cache if cache is None else cache)

    def fixed(self, room: int, *, cache: DynamicCache | None = None) -> Cache:
        """A copy of a compressed cache whose tensors never move, with room for so many tokens more:
        for CUDA graphs, and for code compiled for fixed shapes. It takes one token a pass.

        ``cache.reset()`` takes back what was decoded with it.

        Raises:
            InvalidInput: no room, or a prompt that is not finished.
            UnsupportedCache: a cache that cannot be fixed; the message says why.
        """
        cache = self.cache if cache is None else cache
        return fixed.fixed(cache, self._state(cache), room)

    def rearm(self, cache: DynamicCache | None = None) -> None:
        """Has the next turn's prompt compressed too, together with all that came before it.

        Without this, what follows a compressed prompt (answer, questions) is kept whole.
        """
        self._state(self.cache if cache is None else cache).awaiting = True

    def adopt(self, cache: DynamicCache) -> None:
        """Makes a cache that holds a finished prompt the latest one."""
        self._cache = cache
        state, layers = self._state(cache), foveate_layers(cache)
        state.stats = Stats(state.policy.spec, [layer.stats() for layer in layers])

    def save(self, path: str | Path, *, cache: DynamicCache | None = None,
             tokenizer: PreTrainedTokenizerBase | None = None) -> Path:  # fmt: skip
        """Writes a compressed cache to a safetensors file, with the model's fingerprint."""
        cache = self.cache if cache is None else cache
        self._state(cache)
        return persist.save(Path(path), cache, self.model, self.policy, tokenizer)

    def load(self, path: str | Path, *,
             tokenizer: PreTrainedTokenizerBase | None = None) -> DynamicCache:  # fmt: skip
        """Reads a cache that ``save`` wrote, in this or another process.

        Raises:
            CacheMismatch: it belongs to another model, tokenizer or policy.
            InvalidInput: the file is missing or is no saved cache.
        """
        cache = DynamicCache(config=self.model.config)
        convert(cache, text_config(self.model), self.policy, self.link)
        persist.load(Path(path), cache, self.model, self.policy, tokenizer)
        self._cache = cache
        return cache

    # What happens around the model's calls

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
            self._length = mask.shape[1] if mask is not None else whole.shape[1]
        if (state := state_of(kwargs.get("past_key_values"))) is not None:
            restore_offsets(self._offsets, state)
        try:
            return generate(*args, **kwargs)
        finally:
            self._length = None

    def _before_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kwargs = {**named(model, args), **kwargs}
        tokens = kwargs.get("input_ids")
        given = tokens if tokens is not None else kwargs.get("inputs_embeds")
        if given is None or given.shape[1] == 0:
            raise InvalidInput("the prompt is empty: pass at least one token.")
        if kwargs.get("use_cache") is False:
            raise UnsupportedCache("use_cache=False leaves no cache to compress. Leave it out.")
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = DynamicCache(config=model.config)
            kwargs.update(past_key_values=cache, use_cache=True)
        if (at_hand := fixed.state_of(cache)) is not None:
            self._relink(at_hand)
            restore_offsets(self._offsets, at_hand)
            return (), kwargs
        state = self._adopt(cache)
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
        if self._vision is None or end is None or seen >= self._vision.shape[-1]:
            return visual_tokens(self.model.config, tokens)
        columns = slice(seen, min(end, seen + given.shape[1]))
        found = given_visual_tokens(self._vision, given.shape[0], end, columns)
        drafted = given.shape[1] - found.shape[1]
        return torch.nn.functional.pad(found, (0, drafted)).to(given.device)

    def _adopt(self, cache: Any) -> CacheState:
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
        declared, self._length = self._length, None
        if declared is not None and declared <= seen:
            raise InvalidInput(
                f"the prompt was declared {declared} tokens long, but the cache has seen {seen}."
            )
        state.prompt_end = end if declared is None else declared
        state.awaiting = False
        state.stats = Stats(state.policy.spec)

    def _after_forward(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = kwargs["past_key_values"]
        if fixed.state_of(cache) is not None:
            return
        self._cache = cache
        state, layers = self._state(cache), foveate_layers(cache)
        silent = [layer.index for layer in layers if not layer.linked or not layer.is_initialized]
        if silent:
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be compressed: the attention of layers {silent} "
                "does not go through transformers' attention interface with the cached keys."
            )
        if state.prompt_end is not None and not layers[-1].armed:
            self.adopt(cache)
            state.prompt_end = None
        note_offsets(self._offsets, state)

    def _state(self, cache: Any) -> CacheState:
        state = state_of(cache)
        if state is None:
            raise UnsupportedCache(f"this {type(cache).__name__} was not compressed by Foveate.")
        return state
