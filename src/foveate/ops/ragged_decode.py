"""One decoding step's attention to heads with different numbers of pairs.

On a CPU the reference is PyTorch's own flash attention, for bodies and for tails, which are joined
by their log-sum-exps; elsewhere, a loop of products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, operator
from foveate.ops.softmax_n import share, softmax_n

# scaled_dot_product_attention calls this on a CPU, but does not return the log-sum-exps.
_attention = torch._scaled_dot_product_flash_attention_for_cpu

# pairs of all heads times the elements of a KV head's queries; below, one call is faster
FEW = 2**17
# same unit; from here on several threads share a head. With two threads, complete steps of 32k to
# 128k tokens take .95 to .6 of the time of one thread per head, of 16k .98, because pairs are read
# once from memory. With pairs in the CPU's cache, attention alone takes up to 1.15 below 2 * MANY
MANY = 2**21
SHORT = 64  # pairs per thread: a head with fewer runs on one thread

Part = tuple[Float[Tensor, "a m g e"], Float[Tensor, "a m g"]]
"""Attention to some of the pairs, and the log-sum-exps of their logits."""


class FlatPairs(NamedTuple):
    """Pairs of all heads, head after head, row after row.

    ``starts`` (b * h + 1) are the starts of each head's pairs, and the end of the last head's.
    ``longest`` is the largest number of pairs of a head.
    """

    k: Float[Tensor, "f d"]
    v: Float[Tensor, "f e"]
    starts: Int[Tensor, "heads"]
    longest: int


@operator
def ragged_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    starts: Int[Tensor, "heads"] | None = None,
    longest: int | None = None,
    tail_length: Int[Tensor, "1"] | None = None,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Compute attention of one query per row to its heads' bodies and tails; nothing is masked.

    Softmax in float32. A head without any pair gets zeros. The reference is a loop over the KV
    heads or, if possible, PyTorch's flash attention for CPUs.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        flat_k: the bodies' keys, head after head, row after row.
        flat_v: their values.
        lengths: body length of each (row, KV head), in that order.
        tail_k: keys appended later, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        starts: start of each body, and the end of the last one, in 64 bits, on q's device. The
            kernel reads them instead of ``lengths``; None: it computes them at every call.
        longest: the largest of ``lengths``; None: it is computed. Only the kernel needs it.
        tail_length: number of pairs of the tail that count, on q's device; None: all.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.

    With ``starts``, ``longest`` and ``tail_length`` the kernel's launches depend on shapes alone
    and need no device sync, as a CUDA graph requires.
    """
    if tail_length is None and _may_flash(q, flat_k, flat_v, tail_k, tail_v):
        return flash_decode(q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n)
    return by_products(q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n, tail_length)


def by_products(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float,
    tail_length: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Compute the attention by matrix products in the inputs' dtype.

    It needs no device sync, so a step can be captured: tail pairs beyond ``tail_length`` are
    masked.
    """
    b, hq, _, d = q.shape
    h, t, longest = tail_k.shape[1], tail_k.shape[2], max(lengths)
    queries = (q * scale).reshape(b * h, hq // h, d).transpose(1, 2)
    logits = q.new_full((b * h, longest + t, hq // h), -torch.inf)
    for head, keys in enumerate(torch.split(flat_k, [*lengths])):
        # keys first: (few queries) @ (many keys) is up to three times as slow
        logits[head, : lengths[head]] = keys @ queries[head]
    logits[:, longest:] = tail_k.reshape(b * h, t, d) @ queries
    if tail_length is not None:
        empty = (torch.arange(t, device=q.device) >= tail_length)[:, None]
        logits[:, longest:].masked_fill_(empty, -torch.inf)
        tail_v = tail_v.masked_fill(empty, 0.0)  # they may be NaN, and 0 * NaN is NaN
    weights = softmax_n(logits.transpose(1, 2), n).to(q.dtype)
    of_tail = weights[..., longest:] @ tail_v.reshape(b * h, t, tail_v.shape[3])
    heads = zip(of_tail, weights, lengths, torch.split(flat_v, [*lengths]), strict=True)
    out = [
        torch.addmm(tail_out, own_weights[:, :length], values)
        for tail_out, own_weights, length, values in heads
    ]
    return torch.stack(out).view(b, hq, 1, -1)


def _may_flash(q: Tensor, *pairs: Tensor) -> bool:
    """Return True if flash attention is possible.

    It needs a CPU, keys and values of one width, and no gradients. It takes .7 to .9 of the loop's
    time with one thread, .7 to 1.0 with two (benchmarks/speed/ragged_step.py).
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (q, *pairs))
    return q.device.type == "cpu" and q.shape[3] == pairs[1].shape[1] and not recorded


def flash_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f d"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t d"],
    scale: float,
    n: float,
) -> Float[Tensor, "b hq 1 d"]:
    """Compute what :func:`by_products` does, by flash attention on a CPU, without gradients."""
    heads, (t, d) = len(lengths), tail_k.shape[2:]
    queries = q.reshape(heads, 1, -1, d)
    keys, values = (_rows(x).view(1, 1, *x.shape) for x in (flat_k, flat_v))
    out, total = _Bodies(queries, keys, values, lengths, scale).attend()
    if t:
        k, v = (_rows(x).reshape(heads, 1, t, d) for x in (tail_k, tail_v))
        tail, of_late = _attention(queries, k, v, scale=scale)
        weight = torch.sigmoid(total - of_late).unsqueeze(-1)
        if weight.dtype != q.dtype:
            tail, out = tail.to(weight.dtype), out.to(weight.dtype)
        out = torch.lerp(tail, out, weight)
        total = torch.logaddexp(total, of_late) if n else total
    if n:
        out = out * share(total, n).unsqueeze(-1)
    return out.to(q.dtype).view(q.shape)


class _Bodies(NamedTuple):
    """Queries of one step and the bodies that they attend to, ``lengths`` pairs of each head."""

    queries: Float[Tensor, "heads 1 g d"]
    keys: Float[Tensor, "1 1 f d"]
    values: Float[Tensor, "1 1 f d"]
    lengths: Sequence[int]
    scale: float

    def attend(self) -> Part:
        """Attend by the method that is fastest for this number of pairs."""
        work = self.keys.shape[2] * self.queries.shape[2] * self.queries.shape[3]
        if min(self.lengths) and work <= FEW:
            return self._under_a_mask()
        threads = _threads()
        if threads and threads > 1 and min(self.lengths) and work >= MANY:
            return self._in_parts(threads)
        return self._one_by_one()

    def _under_a_mask(self) -> Part:
        """Attend in one call, with a mask per head; every head needs a pair."""
        heads, (f, d) = len(self.lengths), self.keys.shape[2:]
        hidden = self.queries.new_full((heads * f,), -torch.inf)
        ends = accumulate(self.lengths)
        for row, end, length in zip(range(0, heads * f, f), ends, self.lengths, strict=True):
            hidden[row + end - length : row + end] = 0.0
        k, v = (x.expand(1, heads, f, d) for x in (self.keys, self.values))
        mask = hidden.view(1, heads, 1, f)
        rows = self.queries.transpose(0, 1)
        out, total = _attention(rows, k, v, attn_mask=mask, scale=self.scale)
        return out.view(self.queries.shape), total.view(self.queries.shape[:3])

    def _one_by_one(self) -> Part:
        """Attend with one call per head."""
        g, separate = self.queries.shape[2], not _folds(self.queries, max(self.lengths))
        parts = []
        for query, k, v in self._heads():
            if separate:
                query = query.transpose(1, 2)
                k, v = k.expand(1, g, -1, -1), v.expand(1, g, -1, -1)
            parts.append(_attended(query, k, v, self.scale))
        out, total = (torch.cat(of_heads) for of_heads in zip(*parts, strict=True))
        return out.view(self.queries.shape), total.view(self.queries.shape[:3])

    def _in_parts(self, threads: int) -> Part:
        """Attend with each head's pairs split into one part per thread.

        Without the split, flash attention runs a head on one thread. The remainder of the division
        is one part more, and so are all pairs of a short head. Every head needs a pair.
        """
        parts: list[Part] = []
        for query, k, v in self._heads():
            part_length, d = k.shape[2] // threads, k.shape[3]
            even = part_length * threads if part_length >= SHORT else 0
            rows, shape = query.expand(1, threads, -1, -1), (1, threads, -1, d)
            (k, last_k), (v, last_v) = (
                torch.split(x, [even, x.shape[2] - even], 2) for x in (k, v)
            )
            parts += [
                _attended(rows, k.view(shape), v.view(shape), self.scale)
                if even
                else _nothing(rows),
                _attended(query, last_k, last_v, self.scale),
            ]
        out, total = (torch.cat(of_parts, 1) for of_parts in zip(*parts, strict=True))
        out, total = (x.view(-1, threads + 1, *x.shape[2:]) for x in (out, total))
        weights = total.softmax(1).unsqueeze(-1)
        return (out * weights).sum(1, keepdim=True), total.logsumexp(1, keepdim=True)

    def _heads(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield each head's query, keys and values."""
        bodies = (torch.split(x, [*self.lengths], 2) for x in (self.keys, self.values))
        return zip(torch.split(self.queries, 1), *bodies, strict=True)


def _folds(queries: Float[Tensor, "heads 1 g d"], longest: int) -> bool:
    """Return True if the query heads of a KV head should be queries of one head.

    Then pairs are read once. Measured, as shares of the time of separate query heads: .6 to .9 for
    4 groups and more, with one thread and with two, 1.1 to 1.2 below 100 pairs; for 3 groups and
    two threads 1.3 to 1.5 at every length, because one head runs on one thread, and for one thread
    1.0 to 1.1 below 4,096 pairs, .85 above.
    """
    if queries.shape[2] >= 4 or queries.dtype != torch.float32:
        return True
    return longest >= 4096 and _threads() == 1


def _threads() -> int | None:
    """Return the number of threads; None during compilation, which cannot query it."""
    return None if torch.compiler.is_compiling() else torch.get_num_threads()


def _attended(
    query: Float[Tensor, "1 m q d"],
    k: Float[Tensor, "1 m n d"],
    v: Float[Tensor, "1 m n d"],
    scale: float,
) -> Part:
    """Call flash attention; without pairs it would divide by zero and end the process."""
    if not k.shape[2]:
        return _nothing(query)
    attended: Part = _attention(query, k, v, scale=scale)
    return attended


def _nothing(query: Float[Tensor, "1 m q d"]) -> Part:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf, dtype=dtype)


def _rows(x: Float[Tensor, "*x d"]) -> Float[Tensor, "*x d"]:
    """Return ``x`` with contiguous rows, which flash attention assumes."""
    return x if x.stride(-1) == 1 else x.contiguous()
