"""One decoding step's attention over heads that hold different numbers of pairs.

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

# What scaled_dot_product_attention calls on a CPU. It keeps the log-sum-exps to itself.
_attention = torch._scaled_dot_product_flash_attention_for_cpu

# pairs of all heads times the numbers of a KV head's queries; below, one call is faster
FEW = 2**17
# the same; from here on several threads share a head. With two, whole steps of 32k to 128k tokens
# take .95 to .6 of the time of a head for each, of 16k .98, since pairs come from memory and are
# read once; where they lie in a cache, attention alone is slower below twice this, up to 1.15
MANY = 2**21
SHORT = 64  # pairs for each thread: of fewer, a head is one thread's

Part = tuple[Float[Tensor, "a m g e"], Float[Tensor, "a m g"]]
"""Attention over some of the pairs, and the log-sum-exps of their logits."""


class FlatPairs(NamedTuple):
    """Pairs of all heads, head after head, row after row: where each head's start, and the last
    one's end, in ``starts`` (b * h + 1), and the most that a head has.
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
    """Attention of one query per row over its heads' bodies and tails; nothing is masked.

    Softmax in float32. A head without any pair gets zeros. The reference is a loop over the KV
    heads or, where it may be used, PyTorch's flash attention for CPUs.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        flat_k: the bodies' keys, head after head, row after row.
        flat_v: their values.
        lengths: body length of each (row, KV head), in that order.
        tail_k: keys appended later, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        starts: where each body starts, and where the last one ends, in 64 bits, on q's device. The
            kernel reads them instead of ``lengths``; None: they are made anew, at every call.
        longest: the largest of ``lengths``; None: it is looked for. Only the kernel needs it.
        tail_length: how many pairs of the tail count, on q's device; None: all.
        impl: as :func:`foveate.ops.choice.operator` says, which also lists the errors.

    With ``starts``, ``longest`` and ``tail_length`` given, the kernel's launches depend on the
    shapes alone and nothing waits for the device, as a CUDA graph requires.
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
    """The products are in the inputs' dtype. Nothing is asked of the device, so that a step can be
    captured: what does not count of a tail is masked.
    """
    b, hq, _, d = q.shape
    h, t, most = tail_k.shape[1], tail_k.shape[2], max(lengths)
    queries = (q * scale).reshape(b * h, hq // h, d).transpose(1, 2)
    logits = q.new_full((b * h, most + t, hq // h), -torch.inf)
    for head, keys in enumerate(torch.split(flat_k, [*lengths])):
        # keys first: few queries against many keys is up to three times as slow the other way round
        logits[head, : lengths[head]] = keys @ queries[head]
    logits[:, most:] = tail_k.reshape(b * h, t, d) @ queries
    if tail_length is not None:
        empty = (torch.arange(t, device=q.device) >= tail_length)[:, None]
        logits[:, most:].masked_fill_(empty, -torch.inf)
        tail_v = tail_v.masked_fill(empty, 0.0)  # which may hold anything
    weights = softmax_n(logits.transpose(1, 2), n).to(q.dtype)
    of_tail = weights[..., most:] @ tail_v.reshape(b * h, t, tail_v.shape[3])
    heads = zip(of_tail, weights, lengths, torch.split(flat_v, [*lengths]), strict=True)
    out = [torch.addmm(last, mine[:, :length], values) for last, mine, length, values in heads]
    return torch.stack(out).view(b, hq, 1, -1)


def _may_flash(q: Tensor, *pairs: Tensor) -> bool:
    """Whether flash attention can do it: on a CPU, for keys and values of one width, where no
    gradients are recorded. It takes .7 to .9 of the loop's time with one thread, .7 to 1.0 with
    two (benchmarks/speed/ragged_step.py).
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
    """As the reference's loop, for keys and values of one width on a CPU. It has no gradients."""
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
    """What one query a head attends to beside the tails, ``lengths`` pairs of each head."""

    queries: Float[Tensor, "heads 1 g d"]
    keys: Float[Tensor, "1 1 f d"]
    values: Float[Tensor, "1 1 f d"]
    lengths: Sequence[int]
    scale: float

    def attend(self) -> Part:
        """Attend in the way that is fastest for as many pairs."""
        work = self.keys.shape[2] * self.queries.shape[2] * self.queries.shape[3]
        if min(self.lengths) and work <= FEW:
            return self._under_a_mask()
        threads = _threads()
        if threads and threads > 1 and min(self.lengths) and work >= MANY:
            return self._in_parts(threads)
        return self._one_by_one()

    def _under_a_mask(self) -> Part:
        """Show every head all pairs at once, of which its own count; it has some."""
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
        """Make a call for each head."""
        g, apart = self.queries.shape[2], not _folds(self.queries, max(self.lengths))
        parts = []
        for query, k, v in self._heads():
            if apart:
                query = query.transpose(1, 2)
                k, v = k.expand(1, g, -1, -1), v.expand(1, g, -1, -1)
            parts.append(_attended(query, k, v, self.scale))
        out, total = (torch.cat(of_heads) for of_heads in zip(*parts, strict=True))
        return out.view(self.queries.shape), total.view(self.queries.shape[:3])

    def _in_parts(self, threads: int) -> Part:
        """Cut each head's pairs, of which it has some, into as many parts as there are threads,
        since a head is one thread's work; what cannot be shared out evenly, and a head of few, is
        one part more.
        """
        parts: list[Part] = []
        for query, k, v in self._heads():
            each, d = k.shape[2] // threads, k.shape[3]
            even = each * threads if each >= SHORT else 0
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
        """Each head's query, keys and values."""
        bodies = (torch.split(x, [*self.lengths], 2) for x in (self.keys, self.values))
        return zip(torch.split(self.queries, 1), *bodies, strict=True)


def _folds(queries: Float[Tensor, "heads 1 g d"], longest: int) -> bool:
    """Whether the query heads of a KV head are queries of one head, which reads its pairs once.

    Measured, as shares of the time that query heads of their own take: .6 to .9 for 4 groups and
    more, with one thread and with two, 1.1 to 1.2 below 100 pairs; for 3 groups and two threads 1.3
    to 1.5 at every length, since one head is one thread's work, and for one thread 1.0 to 1.1 below
    4,096 pairs, .85 above.
    """
    if queries.shape[2] >= 4 or queries.dtype != torch.float32:
        return True
    return longest >= 4096 and _threads() == 1


def _threads() -> int | None:
    """None while a step is compiled, which cannot ask for them."""
    return None if torch.compiler.is_compiling() else torch.get_num_threads()


def _attended(
    query: Float[Tensor, "1 m q d"],
    k: Float[Tensor, "1 m n d"],
    v: Float[Tensor, "1 m n d"],
    scale: float,
) -> Part:
    """A call where there are pairs: for none it would divide by zero and end the process."""
    if not k.shape[2]:
        return _nothing(query)
    attended: Part = _attention(query, k, v, scale=scale)
    return attended


def _nothing(query: Float[Tensor, "1 m q d"]) -> Part:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf, dtype=dtype)


def _rows(x: Float[Tensor, "*x d"]) -> Float[Tensor, "*x d"]:
    """With the numbers of a row side by side, which the attention takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()
