"""Random tensors of one layer, and calls of every operator that has a kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveate.cache.pairs import QuantisedPairs, store
from foveate.methods.kivi import InCodes
from foveate.methods.turboquant import TurboQuant
from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_sums,
    column_sums,
)
from foveate.ops.compaction import compaction, starts_of
from foveate.ops.mix_statistics import mix_statistics
from foveate.ops.nearest import nearest_by_cosine
from foveate.ops.quantised_decode import quantised_decode
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.turbo_decode import turbo_decode
from foveate.ops.window_attention import window_attention

Call = Callable[[str], Any]
"""Operator with its arguments, called with the name of an implementation."""

KEEP = 0.1


class Size(NamedTuple):
    """Rows, tokens, KV heads, query heads per KV head, head size, window queries."""

    b: int
    n: int
    h: int = 8
    g: int = 4
    d: int = 128
    w: int = 32


class Inputs:
    """Random tensors of one layer; every head keeps a tenth of its pairs."""

    def __init__(self, size: Size, dtype: torch.dtype, device: torch.device):
        b, n, h, g, d, w = size
        generator = torch.Generator(device).manual_seed(0)

        def normal(heads: int) -> Tensor:  # in memory order of a projection: tokens first
            shape = (b, n, heads, d)
            drawn = torch.randn(shape, generator=generator, device=device, dtype=dtype)
            return drawn.transpose(1, 2)

        self.size, self.scale = size, d**-0.5
        self.q, self.k, self.v = normal(h * g), normal(h), normal(h)
        drawn = torch.rand((b, h, n), generator=generator, dtype=torch.float32, device=device)
        self.kept = drawn < KEEP
        self.kept[..., -1] = True  # every head keeps something
        self.columns = torch.arange(n, device=device).expand(b, h, n)
        self.counts = self.kept.sum(-1)
        self.starts = starts_of(self.counts)
        last = torch.arange(n - w, n, device=device)[:, None]
        self.seen = (torch.arange(n, device=device) <= last).expand(b, 1, w, n)

    def prefill(self) -> dict[str, Call]:
        """Return the operators that run once, after a prefill."""
        q, k, v, scale, kept = self.q, self.k, self.v, self.scale, self.kept
        counts = q.new_ones(len(q), 2, self.size.g, q.shape[2], dtype=torch.float32)
        window = q[:, :, -self.size.w :]
        calls: dict[str, Callable[[Any], Any]] = {
            "column_sums": lambda impl: column_sums(q, k, scale, impl=impl),
            "attention_with_sums": lambda impl: attention_with_sums(q, k, v, scale, impl=impl),
            "attention_with_counted_sums": lambda impl: attention_with_counted_sums(
                q, k, v, counts, scale, 1.0, impl=impl
            ),
            "window_attention": lambda impl: window_attention(
                window, k, self.seen, scale, impl=impl
            ),
            "mix_statistics": lambda impl: mix_statistics(k, v, kept, impl=impl),
            "compaction": lambda impl: compaction(k, v, self.columns, kept, self.counts, impl=impl),
            "nearest_by_cosine": lambda impl: nearest_by_cosine(k, kept, impl=impl),
        }
        return calls

    def decode(self) -> dict[str, Call]:
        """Return one decoding step over kept and a few new pairs, with and without softmax-n."""
        flat = compaction(self.k, self.v, self.columns, self.kept, self.counts, impl="reference")
        lengths = self.starts.diff().tolist()
        query, tail = self.q[:, :, -1:], (self.k[:, :, -33:], self.v[:, :, -33:])
        layout = {"starts": self.starts, "longest": max(lengths)}
        decode: Any = ragged_decode

        def step(n: float) -> Call:
            return lambda impl: decode(
                query, flat.k, flat.v, lengths, *tail, self.scale, n, **layout, impl=impl
            )

        return {
            "ragged_decode": step(0.0),
            "ragged_decode, softmax-n": step(1.0),
            "quantised_decode": self._over_codes(quantised_decode, InCodes(residual=0).layout),
            "turbo_decode": self._over_codes(turbo_decode, TurboQuant(residual=0).layout),
        }

    def _over_codes(self, decode: Any, layout: Any) -> Call:
        """Return a decoding step over all kept pairs as codes, and 33 new ones."""
        kept = store(self.k, self.v, self.columns, self.kept, self.size.n)
        pairs = QuantisedPairs.of(kept, layout, 0)
        pairs.append(self.k[:, :, -33:], self.v[:, :, -33:])
        return lambda impl: decode(self.q[:, :, -1:], *pairs.parts, self.scale, impl=impl)


def decode_step(
    size: Size, lengths: list[int], room: int, dtype: torch.dtype, device: torch.device, impl: Any
) -> Callable[[], Tensor]:
    """Return a ragged decoding step on fixed tensors.

    Bodies have ``lengths``; the tail has room for ``room`` pairs, all of which are used.
    """
    b, _, h, g, d, _ = size

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    q, tail = normal(b, h * g, 1, d), (normal(b, h, room, d), normal(b, h, room, d))
    flat = normal(sum(lengths), d), normal(sum(lengths), d)
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.long, device=device)
    taken = starts.new_tensor([room])
    layout: dict[str, Any] = {"starts": starts, "longest": max(lengths), "tail_length": taken}
    return lambda: ragged_decode(q, *flat, lengths, *tail, d**-0.5, **layout, impl=impl)
