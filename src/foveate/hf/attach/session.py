"""``with foveate.compress(model, policy) as session:`` - attaches on entry, restores on exit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from foveate.compression.composition import BY_DEFAULT, refuse_unknown
from foveate.compression.composition import policy as policy_of
from foveate.errors import NothingCompressed
from foveate.hf.attach.calls import Calls
from foveate.hf.attach.model_policy import say_without_images, with_installed
from foveate.hf.layer import fixed
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.state import Link
from foveate.hf.layer.stats import Stats
from foveate.hf.layer.support import (
    check_model,
    check_profiles,
    convert,
    foveate_layers,
    known_state,
    state_of,
    text_config,
)
from foveate.hf.model.internals import CACHE, Cache, check_inputs, last_logits, take_cache
from foveate.hf.probe.follow_up import Asker
from foveate.hf.saving import persist
from foveate.policies.parameters import Positive, check
from foveate.policies.policy import Policy

_ARGUMENTS = ("policy", "vision", "tokenizer", "strict")


def compress(
    model: nn.Module,
    policy: Policy | str = BY_DEFAULT,
    *,
    vision: Tensor | None = None,
    tokenizer: Any = None,
    strict: bool = False,
    **unknown: Any,
) -> Session:
    """A block inside which every prompt that ``model`` reads is compressed as ``policy`` says.

    On exit, also after an exception, the model is as it was. A call that an exception or an
    interrupt leaves holds nobody up, and what was said in it is forgotten. A copy that
    ``copy.deepcopy`` makes of the model inside the block is in no block. A pass that reads its
    whole input, such as a training step, has the stock loss and gradients, also with gradient
    checkpointing or ``use_cache=False``, which leave nothing to compress; a backward pass through a
    cache that was compressed before raises.

    A policy of one method that can have a profile, and names none, takes the one that is installed
    for the model (``foveate profiles``).

    Args:
        model: any transformers decoder, text or vision-language, with "sdpa" or "eager" attention.
        policy: a policy, or its spec string; left out it is "recommended:budget=20%".
        vision: True at visual tokens of the prompt, [batch, tokens]. Only needed with
            ``inputs_embeds``; otherwise it is read off ``input_ids``.
        tokenizer: the model's tokenizer or processor. Only needed by policies that ask the model
            something themselves, such as ``kvzip:reads=answers``.
        strict: refuses budgets below what the policy always keeps (windows, sinks, recent tokens,
            text that has to stay). Otherwise they are raised to that, row by row; ``session.stats``
            says so (``asked``, ``held``), and the log, "foveate", once of each policy.
        **unknown: every other argument is refused.

    Raises:
        InvalidParameter: an unknown argument, such as ``method=`` or ``budget=``, which belong in
            the spec.
        InvalidBudget: a budget below what is always kept, if that is ``strict``: here where no
            long prompt's could be enough, otherwise when the prompt is read.
        InvalidInput: the policy needs the tokenizer.
        InvalidSpec: neither a policy nor a spec, such as a method that was not called, or a model.
        UnsupportedModel: the model's cache cannot be compressed exactly, or it lacks what the
            policy reads (an output projection); the message says why. In the block: a prompt
            passed by a call of the model.
        UnsupportedCache: in the block, gradients were asked for through a compressed cache, a call
            leaves no cache, or one that cannot be compressed (paged, static, quantised), or a cache
            is used again whose latest pass was cut short.
        ProfileMismatch: the policy was calibrated on another model.
        AlreadyCompressing: the model is inside another block (raised on entry).
    """
    refuse_unknown('compress(model, "{}")', _ARGUMENTS, policy, unknown)
    return Session(model, policy_of(policy), vision, tokenizer, strict)


class Session:
    """One ``compress`` block. A ``queued`` one is entered once the model is free (``model_queue``);
    it may be made while another block is open.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: Policy,
        vision: Tensor | None = None,
        tokenizer: Any = None,
        strict: bool = False,
        queued: bool = False,
    ):
        if strict:
            policy.check_strictly()
        self.model: PreTrainedModel = check_model(model, queued)
        policy = with_installed(policy, self.model)
        check_profiles(policy, self.model)
        say_without_images(self.model, policy, vision)
        self.policy = policy
        asker = Asker.of(self.model, tokenizer, policy)
        self._calls = Calls(self.model, policy, vision, asker, strict)
        self._ends: finalize[..., Session] | None = None

    @property
    def link(self) -> Link:
        """What ties this block's caches to it."""
        return self._calls.link

    def __enter__(self) -> Session:
        # an interrupt may fall before __exit__ has begun: the block ends with its session then
        if self._ends is None:  # a block may be entered again
            self._ends = finalize(self, self._calls.detach)
            self._ends.atexit = False
        self._calls.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.detach()

    # Results

    @property
    def cache(self) -> DynamicCache:
        """The cache of the latest prompt.

        Raises:
            NothingCompressed: no prompt has been read in this block.
        """
        if self._calls.notes.latest is None:
            raise NothingCompressed(
                "no prompt has been read in this block yet: call model.generate(...), "
                "model(...) or session.prefill(...) inside it."
            )
        return self._calls.notes.latest

    @property
    def stats(self) -> Stats:
        """What was kept of the latest prompt, per layer and head, in bytes and in seconds."""
        return known_state(self.cache).turn.stats

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

    def computed_share(self) -> Tensor:
        """How many layers computed each token of the latest cache.

        Returns:
            Float32 [b, tokens seen], between 0 and 1: of all compressible layers, the share that
            computed this token. Below 1 where a prune stage dropped it.
        """
        layers = foveate_layers(self.cache)
        return torch.stack([_computed(layer) for layer in layers]).mean(0)

    # Contexts that are used again

    def expect(self, tokens: int) -> None:
        """Declares the length of the prompt that comes next, padding included.

        Only needed when you call the model yourself, chunk by chunk; ``generate`` declares it.

        Raises:
            InvalidParameter: no whole number from 1 on.
        """
        check({"tokens": Positive}, {"tokens": tokens})
        self._calls.expect(tokens)

    def prefill(self, **inputs: Any) -> DynamicCache:
        """Reads and compresses a context; returns its cache, ready for questions.

        Pass it on with ``model.generate(**whole, past_key_values=session.fork(cache))`` (``cache=``
        since transformers 5.24; in a block both names will do), where
        ``whole`` holds the context's tokens and the question's.

        Raises:
            InvalidParameter: an argument that the model does not read.
        """
        given = take_cache(inputs)
        check_inputs(self.model, inputs)
        cache: DynamicCache = DynamicCache(config=self.model.config) if given is None else given
        inputs |= last_logits(self.model, inputs)
        self._calls.prefills = True
        try:
            with torch.no_grad():
                self.model(**inputs, **{CACHE: cache}, use_cache=True)
        finally:
            self._calls.prefills = False
        return cache

    def fork(self, cache: DynamicCache | None = None) -> DynamicCache:
        """An independent copy of a compressed cache, so that one context serves many questions.

        Raises:
            UnsupportedCache: the latest pass through the cache was interrupted.
        """
        cache = self.cache if cache is None else cache
        if (state := state_of(cache)) is not None:
            state.recover()
        return copy.deepcopy(cache)

    def fixed(self, room: int, *, cache: DynamicCache | None = None) -> Cache:
        """A copy of a compressed cache whose tensors never move, with room for so many tokens more:
        for CUDA graphs, and for code compiled for fixed shapes. It takes one token a pass.

        ``cache.reset()`` takes back what was decoded with it.

        Raises:
            InvalidInput: no room, or a prompt that is not finished.
            UnsupportedCache: a cache that cannot be fixed; the message says why.
        """
        cache = self.cache if cache is None else cache
        state = known_state(cache)
        state.recover()
        return fixed.fixed(cache, state, room)

    def rearm(self, cache: DynamicCache | None = None) -> None:
        """Has the next turn's prompt compressed too, together with all that came before it.

        Without this, what follows a compressed prompt (answer, questions) is kept whole.
        """
        known_state(self.cache if cache is None else cache).update_turn(awaiting=True)

    def adopt(self, cache: DynamicCache) -> None:
        """Makes a cache that holds a finished prompt the latest one.

        Raises:
            UnsupportedCache: the latest pass through the cache was interrupted.
        """
        known_state(cache).recover()
        self._calls.notes.adopt(cache)

    def read_again(self, cache: DynamicCache) -> None:
        """Feeds a recorded prompt once more, where the policy asks for it."""
        self._calls.notes.read_again(cache)

    def save(
        self,
        path: str | Path,
        *,
        cache: DynamicCache | None = None,
        tokenizer: Any = None,
    ) -> Path:
        """Write a compressed cache to a safetensors file: all of it, or nothing. The file names the
        model (weights, active adapters, quantisation, dtype) and ``tokenizer``, a tokenizer or
        processor, and has a digest of its content.

        Raises:
            UnsupportedCache: the policy's store holds pairs in a way of its own, and does not say
                how they come back (``restored``), or the latest pass through the cache was
                interrupted.
            CannotWrite: the disk is full, or the place cannot be written to.
        """
        cache = self.cache if cache is None else cache
        known_state(cache).recover()
        return persist.save(Path(path), cache, self.model, self.policy, tokenizer)

    def load(self, path: str | Path, *, tokenizer: Any = None) -> DynamicCache:
        """Read a cache that ``save`` wrote, in this or another process. If the model has been cast
        since, the pairs are cast, too.

        Raises:
            CacheMismatch: it belongs to another model (other weights, active adapters or
                quantisation), tokenizer or policy, or the cast would round.
            InvalidInput: the file is missing, damaged, or no saved cache.
        """
        cache = DynamicCache(config=self.model.config)
        convert(cache, text_config(self.model), self.policy, self.link)
        persist.load(Path(path), cache, self.model, self.policy, tokenizer)
        for layer in foveate_layers(cache):
            layer.bound_room()
        self._calls.notes.latest = cache
        return cache


def held_share(layers: Sequence[FoveateLayer]) -> Float[Tensor, "b t"]:
    """Of all KV heads of these layers, the share that holds each token seen."""
    return torch.stack([_held(layer) for layer in layers]).mean(0)


def _computed(layer: FoveateLayer) -> Float[Tensor, "b t"]:
    counts = layer.pairs.counts
    dropped = layer.state.tokens.dropped_before(layer.model_index, layer.seen)
    if dropped is None:
        return torch.ones(len(counts), layer.seen, dtype=torch.float32, device=counts.device)
    return (~dropped).to(counts.device, torch.float32)


def _held(layer: FoveateLayer) -> Float[Tensor, "b t"]:
    columns = layer.pairs.columns  # -1 where a slot is empty
    held = columns.new_zeros(*columns.shape[:2], layer.seen + 1, dtype=torch.float32)
    held.scatter_(2, columns % (layer.seen + 1), 1.0)
    return held[..., : layer.seen].mean(1)
