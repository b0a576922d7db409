"""Whether a model and a prompt fit into a memory, what fills it, and what to change first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from foveate.compression.composition import policy as policy_of
from foveate.defaults import DtypeName
from foveate.errors import InvalidParameter, UnsupportedModel
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
    """The KV cache under a policy, and the peak of everything with it; or why that is unknown.
    ``prefill`` is there where the policy leaves visual tokens uncomputed.
    """

    policy: str
    cache: Cache | None
    peak: int | None
    unknown: str = ""
    prefill: PrunedPrefill | None = None


@dataclass(frozen=True)
class PrunedPrefill:
    """The decoder's activations at its peak, in bytes, and its operations as a share of those of
    the whole prompt, where some visual tokens are not computed.
    """

    activations: int
    flops: float


@dataclass(frozen=True)
class Fit:
    """What fills a memory. Bytes, over all rows; None is what cannot be known, and ``unknown`` says
    why, by the name of the part.

    Attributes:
        memory: that is there.
        weights: the model's.
        trace: peaks of tower, prefill and decoding, without the weights.
        caches: full, and under each policy.
        logits: of the prompt's last token, and of all of its tokens.
        changes: what would lower the peak, the largest saving first.
        pool: vLLM's.
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
        """The most that is held at once, with the full cache."""
        return self.caches[0].peak if self.caches else None

    @property
    def fits(self) -> bool | None:
        """Whether that is no more than the memory."""
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
    """Says what a model holds while it sees, reads and answers, from its configuration alone.

    The model's own code runs on tensors without numbers, and what lives is counted
    (:mod:`foveate.memory.counting`). Not counted are what libraries and drivers keep for
    themselves, and what an allocator holds back.

    Args:
        model: a directory with config.json, and preprocessor_config.json where there are images.
        request: what is asked.
        memory: bytes that are there.
        policies: to see the KV cache under.
        dtype: of weights and activations; "auto" is what config.json says.
        engine: settings of vLLM for its pool; None leaves that out.
        trust_remote_code: runs the Python code that comes with the model.

    Raises:
        ModelNotFound, UnsupportedModel, InvalidInput: as :func:`foveate.memory.model.bare`.
        FoveateError: a spec that is no policy.
    """
    chosen = [policy_of(one) if isinstance(one, str) else one for one in policies]
    made, unknown = bare(model, dtype, trust_remote_code), dict[str, str]()
    held = _if_known("weights", unknown, lambda: weights(made))
    traced = _if_known("tower, prefill and cache", unknown, lambda: trace(made, request))
    if traced is None:
        return Fit(model, memory, request, held, None, (), None, (), None, unknown)
    whole = cache.full(traced, request)
    peak = None if held is None else held.bytes + traced.peak(whole)
    under = [_under(made, policy, held, traced, request) for policy in chosen]
    usual = under or [_under(made, policy_of(BY_DEFAULT), held, traced, request)]
    peaks = {one.policy: one.peak for one in usual if one.peak is not None}
    pooled: Pool | None = None
    if engine is not None and held is not None:
        one_row, size = replace(request, batch=1), held.bytes
        served = partial(pool, engine, memory, size, traced, one_row, chosen)
        pooled = _if_known("vLLM's pool", unknown, served)
    return Fit(
        model,
        memory,
        request,
        held,
        traced,
        (Under("full", whole, peak), *under),
        _logits(made, traced, request),
        _changes(made, request, held, traced, peaks, peak) if held and peak else (),
        pooled,
        unknown,
    )


def _if_known(part: str, unknown: dict[str, str], compute: Callable[[], T]) -> T | None:
    """Return what is computed, or None; ``unknown`` says why, by the name of the part."""
    try:
        return compute()
    except Unknown as error:
        unknown[part] = str(error)
        return None


def _under(
    made: Bare, policy: Policy, held: Weights | None, traced: Trace, request: Request
) -> Under:
    try:
        under = pruned(made, policy, traced, request)
        size = cache.under(policy, under, request)
    except (Unknown, UnsupportedModel, InvalidParameter) as error:
        return Under(policy.spec, None, None, str(error))
    peak = None if held is None else held.bytes + under.peak(size)
    prefill = None
    if under is not traced and under.flops and traced.flops:
        prefill = PrunedPrefill(under.activations, under.flops / traced.flops)
    return Under(policy.spec, size, peak, prefill=prefill)


def _logits(made: Bare, traced: Trace, request: Request) -> tuple[int, int] | None:
    last: Any = made.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if last is None:
        return None
    one = last.weight.shape[0] * made.dtype.itemsize * request.batch
    return one, one * traced.tokens


CHUNK = 1024
_LEAST = 0.005  # of the peak: less is no reason to change anything


@dataclass(frozen=True)
class Change:
    """A change, the option of ``foveate fit`` that tries it ("" where none does), the peak that
    is left, and what it saves of the peak, both in bytes.
    """

    what: str
    option: str
    peak: int
    saves: int


def _changes(
    bare: Bare,
    request: Request,
    held: Weights,
    traced: Trace,
    under: Mapping[str, int],
    peak: int,
) -> tuple[Change, ...]:
    """The changes that lower the peak, the largest saving first. ``under`` are the peaks under
    policies, by their specs.
    """
    tried = (
        *_of_requests(bare, request, held, traced),
        *_of_weights(bare, request, held, traced),
        *((f"the policy {spec}", f"--policy {spec}", least) for spec, least in under.items()),
    )
    tried_changes = [Change(what, option, least, peak - least) for what, option, least in tried]
    worth = [one for one in tried_changes if one.saves > _LEAST * peak]
    return tuple(sorted(worth, key=lambda one: -one.saves))


Tried = tuple[str, str, int]


def _of_requests(bare: Bare, request: Request, held: Weights, traced: Trace) -> Iterator[Tried]:
    """What is asked otherwise, traced anew."""
    for what, option, other in _requests(bare, request, traced):
        try:
            retraced = trace(bare, other)
        except Unknown:
            continue
        yield what, option, held.bytes + retraced.peak(cache.full(retraced, other))


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
    if request.shown and request.size is not None:
        width, height = (max(1, round(length * 0.5**0.5)) for length in request.size)
        size, smaller = f"{width}x{height}", replace(request, size=(width, height))
        yield f"images of half the pixels, {size}", f"--size {size}", smaller
    for name, count in (("image", request.images), ("frame", request.frames)):
        if half := count // 2:
            fewer = replace(request, **{f"{name}s": half})  # type: ignore[arg-type]
            yield f"{half} {name}(s) instead of {count}", f"--{name}s {half}", fewer
    if request.batch > 1:
        yield "one row at a time", "--batch 1", replace(request, batch=1)


def _of_weights(bare: Bare, request: Request, held: Weights, traced: Trace) -> Iterator[Tried]:
    if held.held != str(bare.dtype).removeprefix("torch."):
        return
    if bare.dtype == torch.float32:
        half = replace(bare, model=bare.model.bfloat16(), dtype=torch.bfloat16)
        retraced, size = trace(half, request), weights(half).bytes
        bare.model.float()  # type: ignore[no-untyped-call]
        left = size + retraced.peak(cache.full(retraced, request))
        yield "bfloat16 instead of float32", "--dtype bfloat16", left
    left = in_four_bits(bare.model) + traced.peak(cache.full(traced, request))
    yield "linear layers in 4 bits (bitsandbytes, nf4)", "", left
