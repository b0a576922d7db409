"""Fit of a model and a prompt into a memory: its parts, and the changes that save most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from foveate.compression.composition import policy as policy_of
from foveate.defaults import DtypeName
from foveate.errors import InvalidParameter, UnsupportedModel, UnsupportedPolicy
from foveate.hf.attach.latents import for_latents
from foveate.memory import cache
from foveate.memory.cache import Engine, Pool, pool
from foveate.memory.model import Bare, Weights, bare, in_four_bits, weights
from foveate.memory.request import Request, Unknown
from foveate.memory.trace import Cache, Trace, pruned, trace
from foveate.policies.policy import Policy

T = TypeVar("T")
BY_DEFAULT = "recommended:budget=20%"


@dataclass(frozen=True)
class Under:
    """KV cache under a policy, and the peak of everything with it; or the reason why it is
    ``unknown``. ``prefill`` is set if the policy leaves visual tokens uncomputed.
    """

    policy: str
    cache: Cache | None
    peak: int | None
    unknown: str = ""
    prefill: PrunedPrefill | None = None


@dataclass(frozen=True)
class PrunedPrefill:
    """Prefill without some visual tokens: the decoder's activations at its peak, in bytes, and its
    operations as a share of those for the whole prompt.
    """

    activations: int
    flops: float


@dataclass(frozen=True)
class Fit:
    """Contents of a memory in bytes, over all rows. Unknown parts are None, with the reason in
    ``unknown`` by the name of the part.

    Attributes:
        memory: available bytes.
        weights: weights of the model.
        trace: peaks of tower, prefill and decoding, without the weights.
        caches: the full cache, then the cache under each policy.
        logits: bytes for the prompt's last token, and for all of its tokens.
        changes: changes that lower the peak, the largest saving first.
        pool: vLLM's block pool.
    """

    model: str
    memory: int
    request: Request
    weights: Weights | None
    trace: Trace | None
    caches: tuple[Under, ...]
    logits: tuple[int, int] | None
    changes: tuple[Change, ...]
    pool: Pool | None
    unknown: dict[str, str]

    @property
    def peak(self) -> int | None:
        """Peak of the memory in use with the full cache, in bytes."""
        return self.caches[0].peak if self.caches else None

    @property
    def fits(self) -> bool | None:
        """True if the peak is at most ``memory``; None if the peak is unknown."""
        return None if self.peak is None else self.peak <= self.memory


def fit(
    model: str,
    request: Request,
    memory: int,
    *,
    policies: Sequence[Policy | str] = (BY_DEFAULT,),
    dtype: DtypeName = "auto",
    engine: Engine | None = None,
    trust_remote_code: bool = False,
) -> Fit:
    """Estimate a model's memory while it sees, reads and answers, from its configuration alone.

    The model's own code runs on tensors without numbers, and live bytes are counted
    (:mod:`foveate.memory.counting`). Memory that libraries, drivers and the allocator reserve is
    not counted.

    Args:
        model: directory with config.json, and with preprocessor_config.json if there are images.
        request: size of the prompt and the answer.
        memory: available bytes.
        policies: policies under which to size the KV cache.
        dtype: dtype of weights and activations; "auto" takes config.json's.
        engine: settings of vLLM for its pool; None leaves the pool out.
        trust_remote_code: run the Python code that comes with the model.

    Raises:
        ModelNotFound, UnsupportedModel, InvalidInput: see :func:`foveate.memory.model.bare`.
        FoveateError: an invalid spec of a policy.
    """
    chosen = [policy_of(policy) if isinstance(policy, str) else policy for policy in policies]
    model_outline, unknown = bare(model, dtype, trust_remote_code), dict[str, str]()
    stored = _if_known("weights", unknown, lambda: weights(model_outline))
    traced = _if_known("tower, prefill and cache", unknown, lambda: trace(model_outline, request))
    if traced is None:
        return Fit(model, memory, request, stored, None, (), None, (), None, unknown)
    stock = cache.full(traced, request)
    peak = None if stored is None else stored.bytes + traced.peak(stock)
    under = [_under(model_outline, policy, stored, traced, request) for policy in chosen]
    shown_policies = under or [
        _under(model_outline, policy_of(BY_DEFAULT), stored, traced, request)
    ]
    peaks = {entry.policy: entry.peak for entry in shown_policies if entry.peak is not None}
    pooled: Pool | None = None
    if engine is not None and stored is not None:
        one_row, size = replace(request, batch=1), stored.bytes
        served = partial(pool, engine, memory, size, traced, one_row, chosen)
        pooled = _if_known("vLLM's pool", unknown, served)
    return Fit(
        model,
        memory,
        request,
        stored,
        traced,
        (Under("full", stock, peak), *under),
        _logits(model_outline, traced, request),
        _changes(model_outline, request, stored, traced, peaks, peak) if stored and peak else (),
        pooled,
        unknown,
    )


def _if_known(part: str, unknown: dict[str, str], compute: Callable[[], T]) -> T | None:
    """Return the result of ``compute``; if it is Unknown, note the reason and return None."""
    try:
        return compute()
    except Unknown as error:
        unknown[part] = str(error)
        return None


def _under(
    model_outline: Bare, policy: Policy, stored: Weights | None, traced: Trace, request: Request
) -> Under:
    try:
        under = pruned(model_outline, policy, traced, request)
        size = cache.under(for_latents(policy, model_outline.model), under, request)
    except (Unknown, UnsupportedModel, UnsupportedPolicy, InvalidParameter) as error:
        return Under(policy.spec, None, None, str(error))
    peak = None if stored is None else stored.bytes + under.peak(size)
    prefill = None
    if under is not traced and under.flops and traced.flops:
        prefill = PrunedPrefill(under.activations, under.flops / traced.flops)
    return Under(policy.spec, size, peak, prefill=prefill)


def _logits(model_outline: Bare, traced: Trace, request: Request) -> tuple[int, int] | None:
    last: Any = model_outline.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if last is None:
        return None
    last_token = last.weight.shape[0] * model_outline.dtype.itemsize * request.batch
    return last_token, last_token * traced.tokens


CHUNK = 1024
_LEAST = 0.005  # share of the peak: smaller savings are not worth a change


@dataclass(frozen=True)
class Change:
    """A change, the option of ``foveate fit`` that tries it ("" if there is none), the remaining
    peak, and its saving, both in bytes.
    """

    what: str
    option: str
    peak: int
    saves: int


def _changes(
    bare: Bare,
    request: Request,
    stored: Weights,
    traced: Trace,
    under: Mapping[str, int],
    peak: int,
) -> tuple[Change, ...]:
    """Return the changes that lower the peak, the largest saving first. ``under`` are the peaks
    under policies, by their specs.
    """
    tried = (
        *_of_requests(bare, request, stored, traced),
        *_of_weights(bare, request, stored, traced),
        *((f"the policy {spec}", f"--policy {spec}", least) for spec, least in under.items()),
    )
    tried_changes = [Change(what, option, least, peak - least) for what, option, least in tried]
    worth = [change for change in tried_changes if change.saves > _LEAST * peak]
    return tuple(sorted(worth, key=lambda change: -change.saves))


Tried = tuple[str, str, int]


def _of_requests(bare: Bare, request: Request, stored: Weights, traced: Trace) -> Iterator[Tried]:
    """Yield changes of the request, each with its peak from a new trace."""
    for what, option, other in _requests(bare, request, traced):
        try:
            retraced = trace(bare, other)
        except Unknown:
            continue
        yield what, option, stored.bytes + retraced.peak(cache.full(retraced, other))


def _requests(bare: Bare, request: Request, traced: Trace) -> Iterator[tuple[str, str, Request]]:
    attention = request.attention or bare.config._attn_implementation
    if attention == "eager":
        yield "SDPA instead of eager attention", "--attn sdpa", replace(request, attention="sdpa")
    if attention == "sdpa":
        flash = replace(request, attention="flash_attention_2")
        yield "FlashAttention 2, without masks", "--attn flash_attention_2", flash
    if request.chunk is None and traced.tokens > CHUNK:
        chunks = replace(request, chunk=CHUNK)
        yield f"the prompt in chunks of {CHUNK:,} tokens", f"--chunk {CHUNK}", chunks
    if request.image_count and request.size is not None:
        width, height = (max(1, round(length * 0.5**0.5)) for length in request.size)
        size, smaller = f"{width}x{height}", replace(request, size=(width, height))
        yield f"images of half the pixels, {size}", f"--size {size}", smaller
    for name, count in (("image", request.images), ("frame", request.frames)):
        if half := count // 2:
            fewer = replace(request, **{f"{name}s": half})  # type: ignore[arg-type]
            yield f"{half} {name}(s) instead of {count}", f"--{name}s {half}", fewer
    if request.batch > 1:
        yield "one row at a time", "--batch 1", replace(request, batch=1)


def _of_weights(bare: Bare, request: Request, stored: Weights, traced: Trace) -> Iterator[Tried]:
    if stored.held != str(bare.dtype).removeprefix("torch."):
        return
    if bare.dtype == torch.float32:
        half = replace(bare, model=bare.model.bfloat16(), dtype=torch.bfloat16)
        retraced, size = trace(half, request), weights(half).bytes
        bare.model.float()  # type: ignore[no-untyped-call]
        left = size + retraced.peak(cache.full(retraced, request))
        yield "bfloat16 instead of float32", "--dtype bfloat16", left
    left = in_four_bits(bare.model) + traced.peak(cache.full(traced, request))
    yield "linear layers in 4 bits (bitsandbytes, nf4)", "", left
