"""What would lower the peak, each change by itself and with its figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from foveate.memory import cache
from foveate.memory.model import Bare
from foveate.memory.request import Request
from foveate.memory.trace import Trace, trace
from foveate.memory.unknown import Unknown
from foveate.memory.weights import Weights, in_four_bits, weights

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


def changes(
    bare: Bare, request: Request, held: Weights, traced: Trace, under: Mapping[str, int]
) -> tuple[Change, ...]:
    """The changes that lower the peak, the largest saving first. ``under`` are the peaks under
    policies, by their specs.
    """
    peak = held.bytes + traced.peak(cache.full(traced, request))
    tried = (
        *_of_requests(bare, request, held, traced),
        *_of_weights(bare, request, held, traced),
        *_of_caches(under),
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
        smaller = request.smaller(0.5)
        size = "x".join(map(str, smaller.size or ()))
        yield f"images of half the pixels, {size}", f"--size {size}", smaller
    if half := request.images // 2:
        yield (
            f"{half} image(s) instead of {request.images}",
            f"--images {half}",
            replace(request, images=half),
        )
    if half := request.frames // 2:
        yield (
            f"{half} frame(s) instead of {request.frames}",
            f"--frames {half}",
            replace(request, frames=half),
        )
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


def _of_caches(peaks: Mapping[str, int]) -> Iterator[Tried]:
    for spec, peak in peaks.items():
        yield f"the policy {spec}", f"--policy {spec}", peak
