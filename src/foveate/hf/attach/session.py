"""Compression of a model's prompts inside ``with foveate.compress(model, policy) as session:``.

Entry installs hooks on the model, and exit removes them.
"""

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
from foveate.hf.attach.latents import for_latents
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
from foveate.hf.probe.questions import Asker
from foveate.hf.saving import cache_files
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
    """Return a context manager inside which every prompt that ``model`` reads is compressed under
    ``policy``.

    On exit, also after an exception, the model is restored. A call that raised or was interrupted
    does not block later calls, which never see its inputs. A copy that ``copy.deepcopy`` makes of
    the model inside the context has no hooks.

    A pass that reads its complete input, such as a training step, has the stock loss and gradients.
    A training step may also use gradient checkpointing or ``use_cache=False``: both leave no cache,
    so nothing is compressed. Any other call with ``use_cache=False`` raises, and so does a backward
    pass through a compressed cache.

    If a policy of a single method leaves out an optional profile, the profile that is installed for
    the model is used (``foveate profiles``).

    Args:
        model: any transformers decoder, text or vision-language, with "sdpa" or "eager" attention.
        policy: a policy, or its spec string; the default is "recommended:budget=20%".
        vision: True at visual tokens of the prompt, [batch, tokens]. Only needed with
            ``inputs_embeds``; otherwise it is derived from ``input_ids``.
        tokenizer: the model's tokenizer or processor. Only needed by policies that ask the model
            questions, such as ``kvzip:reads=answers``.
        strict: refuse budgets below what the policy always keeps (windows, sinks, recent tokens,
            protected text) with an error. Otherwise they are increased to that, row by row. Then
            ``session.stats`` has both numbers (``asked``, ``held``), and the logger "foveate" warns
            once per policy.
        **unknown: any other argument raises.

    Raises:
        InvalidParameter: an unknown argument, such as ``method=`` or ``budget=``, which belong in
            the spec.
        InvalidBudget: with ``strict``, a budget below what is always kept: here if that holds for
            prompts of any length, otherwise when the prompt is read.
        InvalidInput: the policy needs the tokenizer.
        InvalidSpec: ``policy`` is neither a policy nor a spec. It may be a method that was not
            called (``foveate.snapkv``), or the model.
        UnsupportedModel: the model's cache cannot be compressed exactly, or it lacks what the
            policy reads (an output projection); the message has the reason. Inside the context: the
            model called its decoder's layers outside the decoder's ``forward``.
        UnsupportedCache: inside the context, a backward pass through a compressed cache; a call
            that leaves no cache outside of training, or has one that cannot be compressed (paged,
            static, quantised); or a cache whose latest pass was interrupted.
        ProfileMismatch: the policy was calibrated on another model.
        AlreadyCompressing: the model is inside another context (raised on entry).
    """
    refuse_unknown('compress(model, "{}")', _ARGUMENTS, policy, unknown)
    return Session(model, policy_of(policy), vision, tokenizer, strict)


class Session:
    """One ``compress()`` context: statistics of its latest prompt, and operations on its caches.

    A ``queued`` session may be created while the model is inside another context. It does not wait
    by itself: before entering it, its owner waits for the model's turn (``model_queue``).
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
        policy = for_latents(with_installed(policy, self.model), self.model)
        check_profiles(policy, self.model)
        say_without_images(self.model, policy, vision)
        self.policy = policy
        asker = Asker.of(self.model, tokenizer, policy)
        self._calls = Calls(self.model, policy, vision, asker, strict)
        self._finalizer: finalize[..., Session] | None = None

    def __repr__(self) -> str:
        return f"Session({type(self.model).__name__}, {self.policy.spec})"

    @property
    def link(self) -> Link:
        """Connection of this context to its caches, which keep it after the context was left."""
        return self._calls.link

    def __enter__(self) -> Session:
        # An interrupt may come before __exit__ has begun: then the session's finalizer detaches.
        if self._finalizer is None:  # a context may be entered again
            self._finalizer = finalize(self, self._calls.detach)
            self._finalizer.atexit = False
        self._calls.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.detach()

    # Results

    @property
    def cache(self) -> DynamicCache:
        """Cache of the latest prompt.

        Raises:
            NothingCompressed: no prompt has been read in this context.
        """
        if self._calls.notes.latest is None:
            raise NothingCompressed(
                "no prompt has been read in this block yet: call model.generate(...), "
                "model(...) or session.prefill(...) inside it."
            )
        return self._calls.notes.latest

    @property
    def stats(self) -> Stats:
        """Statistics of the latest prompt: pairs kept per layer and head, bytes and seconds.

        Those of a cache that ``load`` returned have no seconds, because files do not store them.
        """
        return known_state(self.cache).turn.stats

    @property
    def bytes_held(self) -> int:
        """Bytes that the compressed layers of the latest cache occupy now."""
        return sum(layer.nbytes for layer in foveate_layers(self.cache))

    def held_share(self) -> Tensor:
        """Return the share of KV heads that store each token of the latest cache, for pictures of
        what was kept.

        Returns:
            Float32 [b, tokens seen], between 0 and 1: of all KV heads of all compressible layers,
                the share that stores this token's pair.
        """
        return held_share(foveate_layers(self.cache))

    def computed_share(self) -> Tensor:
        """Return the share of layers that computed each token of the latest cache.

        Returns:
            Float32 [b, tokens seen], between 0 and 1: of all compressible layers, the share that
                computed this token. Below 1 where a prune stage dropped it.
        """
        layers = foveate_layers(self.cache)
        return torch.stack([_computed_tokens(layer) for layer in layers]).mean(0)

    # Caches, for several questions and turns. Without an argument ``cache``, the latest one.

    def expect(self, tokens: int) -> None:
        """Declare the length of the next prompt, padding included.

        Only needed when you call the model yourself, chunk by chunk; ``generate`` declares it.

        Raises:
            InvalidParameter: not an integer of at least 1.
        """
        check({"tokens": Positive}, {"tokens": tokens})
        self._calls.expect(tokens)

    def prefill(self, **inputs: Any) -> DynamicCache:
        """Read and compress a prompt; return its cache, ready for questions.

        Pass the cache on with ``model.generate(**inputs, past_key_values=session.fork(cache))``,
        where ``inputs`` have the tokens of the prompt and of the question. (transformers 5.24
        renames the argument to ``cache=``; inside a context both names work.)

        Raises:
            InvalidParameter: an argument that the model does not read.
            NothingCompressed: it is called outside the context, where nothing is compressed.
        """
        passed = take_cache(inputs)
        check_inputs(self.model, inputs)
        if not self.link.open:
            raise NothingCompressed(
                "session.prefill() compresses inside its context only: call it inside "
                "'with foveate.compress(model, policy) as session:'."
            )
        cache: DynamicCache = DynamicCache(config=self.model.config) if passed is None else passed
        inputs |= last_logits(self.model, inputs)
        self._calls.prefills = True  # nobody reads the outputs of earlier tokens
        try:
            with torch.no_grad():
                self.model(**inputs, **{CACHE: cache}, use_cache=True)
        finally:
            self._calls.prefills = False
        return cache

    def fork(self, cache: DynamicCache | None = None) -> DynamicCache:
        """Return an independent copy of a compressed cache, so that one prompt serves many
        questions. A cache that Foveate did not compress is copied, too.

        Raises:
            UnsupportedCache: the latest pass through the cache was interrupted.
        """
        cache = self.cache if cache is None else cache
        if (state := state_of(cache)) is not None:
            state.recover()
        return copy.deepcopy(cache)

    def fixed(self, room: int, *, cache: DynamicCache | None = None) -> Cache:
        """Copy a compressed cache into one whose tensors never move, with room for ``room`` more
        tokens: for CUDA graphs, and for code compiled for fixed shapes. It takes one token a pass;
        ``cache.reset()`` removes the decoded tokens.

        Raises:
            InvalidInput: ``room`` is below 1, or the prompt is not finished.
            UnsupportedCache: a cache that cannot be fixed; the message has the reason.
        """
        cache = self.cache if cache is None else cache
        state = known_state(cache)
        state.recover()
        return fixed.fixed(cache, state, room)

    def rearm(self, cache: DynamicCache | None = None) -> None:
        """Compress the cache once more when the next turn's prompt is read: that prompt together
        with all tokens before it.

        Without this, all tokens after a compressed prompt (answers, later questions) are kept.

        Raises:
            UnsupportedCache: Foveate did not compress this cache.
        """
        known_state(self.cache if cache is None else cache).update_turn(awaiting=True)

    def adopt(self, cache: DynamicCache) -> None:
        """Make a cache whose prompt is complete the latest one, and compute its statistics.

        Raises:
            UnsupportedCache: Foveate did not compress this cache, or its latest pass was
                interrupted.
        """
        known_state(cache).recover()
        self._calls.notes.adopt(cache)

    def read_again(self, cache: DynamicCache) -> None:
        """Run the probe passes that the policy needs after a recorded prompt, if any.

        ``foveate.hf.branch`` calls this for the cache that it builds from a recording. After a
        prompt that the model reads inside the context, these passes run automatically.
        """
        self._calls.notes.read_again(cache)

    def save(
        self,
        path: str | Path,
        *,
        cache: DynamicCache | None = None,
        tokenizer: Any = None,
    ) -> Path:
        """Write a compressed cache to a safetensors file, atomically. The file identifies the model
        (weights, active adapters, quantisation, dtype) and ``tokenizer``, a tokenizer or processor,
        and has a digest of its content.

        Raises:
            UnsupportedCache: the policy's store has its own format and no ``restored`` method to
                read it, or the latest pass through the cache was interrupted.
            CannotWrite: the disk is full, or the path is not writable.
        """
        cache = self.cache if cache is None else cache
        known_state(cache).recover()
        return cache_files.save(Path(path), cache, self.model, self.policy, tokenizer)

    def load(self, path: str | Path, *, tokenizer: Any = None) -> DynamicCache:
        """Read a cache that ``save`` wrote, in this or another process, and make it the latest one.
        If the model has been cast since, the pairs are cast, too.

        Raises:
            CacheMismatch: it belongs to another model (other weights, active adapters or
                quantisation), tokenizer or policy, or the cast would round.
            InvalidInput: the file is missing, damaged, or no saved cache.
        """
        cache = DynamicCache(config=self.model.config)
        convert(cache, text_config(self.model), self.policy, self.link)
        cache_files.load(Path(path), cache, self.model, self.policy, tokenizer)
        for layer in foveate_layers(cache):
            layer.bound_room()  # files do not store the limit of a budget in bytes
        self.adopt(cache)
        return cache


def held_share(layers: Sequence[FoveateLayer]) -> Float[Tensor, "b t"]:
    """Return the share of KV heads of these layers that store each token seen."""
    return torch.stack([_share_of_heads(layer) for layer in layers]).mean(0)


def _computed_tokens(layer: FoveateLayer) -> Float[Tensor, "b t"]:
    """Return 1.0 for each token seen that the layer computed, 0.0 for each that was pruned."""
    counts = layer.pairs.counts
    dropped = layer.state.tokens.dropped_before(layer.model_index, layer.seen)
    if dropped is None:
        return torch.ones(len(counts), layer.seen, dtype=torch.float32, device=counts.device)
    return (~dropped).to(counts.device, torch.float32)


def _share_of_heads(layer: FoveateLayer) -> Float[Tensor, "b t"]:
    """Return the share of the layer's KV heads that store each token seen."""
    columns = layer.pairs.columns  # -1 where a slot is empty
    # -1 modulo seen + 1 is seen: empty slots write to an extra column, which is then cut off
    stored = columns.new_zeros(*columns.shape[:2], layer.seen + 1, dtype=torch.float32)
    stored.scatter_(2, columns % (layer.seen + 1), 1.0)
    return stored[..., : layer.seen].mean(1)
