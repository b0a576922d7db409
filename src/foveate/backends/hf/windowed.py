"""The prompt's attention, whose last queries wait until a score asks what they pay.

A long observation window (a tenth of the prompt in CSP and DAVID) costs as much again as the same
rows of the attention; so these rows are done once, for the output and for the score, as soon as the
score tells how much each counts. The output differs from that of the stock attention by rounding
(1e-6 in float32), so this is done only for prompts that will be compressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.backends.hf.stats import Stopwatch
from foveate.backends.hf.summed import in_blocks, tokens_kept, writes_out
from foveate.ops.column_sums import attention_with_counted_sums

if TYPE_CHECKING:
    from foveate.backends.hf.attend import Attend
    from foveate.backends.hf.layer import FoveateLayer

WORTH = 128  # queries: short windows cost little, and the stock attention stays as it is


class LastQueries:
    """The last queries of a prompt, and where their attention goes once it is made."""

    def __init__(
        self,
        q: Float[Tensor, "b hq w d"],
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n e"],
        scale: float,
        pads: list[int],
        into: Float[Tensor, "b w hq e"],
        watch: Stopwatch,
    ):
        self.q, self.k, self.v, self.scale, self.pads, self.into = q, k, v, scale, pads, into
        self.queries, self.made, self.watch = q.shape[2], False, watch

    def sums(self, counts: Float[Tensor, "b c g w"], n: float) -> Float[Tensor, "b h c n"]:
        """What they pay to every slot (:class:`foveate.core.layer.Window`), and the attention,
        which is no part of the score's time.
        """
        counts = torch.nn.functional.pad(counts, (self.queries - counts.shape[-1], 0))
        with self.watch.stopped(counts.device):
            return self._make(counts, n)

    def finish(self) -> None:
        """Makes the attention if nobody has asked."""
        if not self.made:
            groups = self.q.shape[1] // self.k.shape[1]
            self._make(self.q.new_zeros(self.q.shape[0], 1, groups, self.queries), 0.0)

    def _make(self, counts: Float[Tensor, "b c g w"], n: float) -> Float[Tensor, "b h c n"]:
        out, sums = attention_with_counted_sums(
            self.q, self.k, self.v, counts, self.scale, n, self.pads
        )
        self.into.copy_(out.transpose(1, 2))
        self.made = True
        return sums


def attention(
    owner: FoveateLayer,
    base: Attend,
    query: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Float[Tensor, "b m hq e"] | None:
    """The attention of a prompt in one pass, in which the last queries' is still to be made
    (``owner.window``); None where the stock one has to do all of it: no sums over a long window,
    another device or type, a mask that is not causal.
    """
    w = _rows(owner, query, mask)
    if not w:
        return None
    k, v = owner.padded()[:2]
    facts = owner.state.facts(mask, (query.shape[0], query.shape[2], owner.seen), query.device)
    early = None if mask is None else mask[:, :, :-w, :-w]
    before, _ = base(query[:, :, :-w], k[:, :, :-w], v[:, :, :-w], early)
    out = before.new_empty(before.shape[0], query.shape[2], *before.shape[2:])
    out[:, :-w] = before
    late, pads = query[:, :, -w:], facts.pads.tolist()
    owner.window = LastQueries(late, k, v, scale, pads, out[:, -w:], owner.watch)
    return out


def _rows(owner: FoveateLayer, query: Tensor, mask: Tensor | None) -> int:
    """How many of the last queries wait."""
    m, policy = query.shape[2], owner.state.policy
    if not (policy.reads_window_sums and in_blocks(query) and writes_out(owner, query)):
        return 0
    if m != owner.seen or owner.seen != owner.state.prompt_end:
        return 0
    wanted = policy.score.queries
    if wanted(m) < WORTH:  # no budget is larger than the prompt
        return 0
    tokens = tokens_kept(owner, query, mask)
    w = 0 if tokens is None else wanted(int(tokens.max()))
    return w if WORTH <= w < m else 0
