"""The prompt's attention with that of its last queries written out, where a score reads it anyhow.

A long observation window (a tenth of the prompt in CSP and DAVID) costs as much again as the same
rows of the attention; so these rows are done once, for the output and for the score. The output
differs from that of the stock attention by rounding (1e-6 in float32), so this is done only for
prompts that will be compressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.backends.hf.masks import over_slots
from foveate.backends.hf.summed import in_blocks, tokens_kept, writes_out
from foveate.core.layer import Window
from foveate.ops.window_attention import window_attention

if TYPE_CHECKING:
    from foveate.backends.hf.attend import Attend
    from foveate.backends.hf.layer import FoveateLayer

WORTH = 128  # queries: short windows cost little, and the stock attention stays as it is
BYTES = 2**28  # of a window's weights


def attention(
    owner: FoveateLayer,
    base: Attend,
    query: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Float[Tensor, "b m hq e"] | None:
    """The attention of a prompt in one pass; None where the stock one has to do all of it: a short
    window, another device or type, a mask that is not causal.
    """
    w = _rows(owner, query, mask)
    if not w:
        return None
    k, v, columns = owner.padded()
    early = None if mask is None else mask[:, :, :-w, :-w]
    before, _ = base(query[:, :, :-w], k[:, :, :-w], v[:, :, :-w], early)
    late, seen = query[:, :, -w:], None if mask is None else mask[:, :, -w:]
    visible = over_slots(seen, columns, owner.columns_of(late))
    weights = window_attention(late, k, visible, scale)
    owner.window = Window(weights, _totals(late, k, weights, visible, scale))
    b, h, g, _, n = weights.shape
    after = (weights.view(b, h, g * w, n) @ v).view(b, h * g, w, -1)
    return torch.cat([before, after.transpose(1, 2)], dim=1)


def _rows(owner: FoveateLayer, query: Tensor, mask: Tensor | None) -> int:
    """How many of the last queries' rows are written out."""
    b, hq, m, _ = query.shape
    if not (in_blocks(query) and writes_out(owner, query)):
        return 0
    if m != owner.seen or owner.seen != owner.state.prompt_end:
        return 0
    wanted = owner.state.policy.score.queries
    if wanted(m) < WORTH:  # no budget is larger than the prompt
        return 0
    tokens = tokens_kept(owner, query, mask)
    w = 0 if tokens is None else wanted(int(tokens.max()))
    worth = WORTH <= w <= m // 2 and 4 * b * hq * w * m <= BYTES
    return w if worth else 0


def _totals(
    q: Float[Tensor, "b hq w d"], k: Float[Tensor, "b h n d"],
    weights: Float[Tensor, "b h g w n"], visible: Bool[Tensor, "b #h w n"], scale: float,
) -> Float[Tensor, "b h g w"]:  # fmt: skip
    """Each row's logsumexp: that of a query's own slot, whose logit is known, minus the logarithm
    of its weight; from all logits of the row where that weight is too small to tell. It is -inf in
    a row that sees nothing.
    """
    b, h, g, w, n = weights.shape
    grouped = q.view(b, h, g, w, -1)
    own = weights[..., n - w :].diagonal(dim1=-2, dim2=-1)
    logits = (grouped * k[:, :, None, n - w :]).sum(-1) * scale
    sees = visible.any(-1)[:, :, None]
    totals = (logits - own.log()).masked_fill(~sees, -torch.inf)
    small = sees & (own < torch.finfo(torch.float32).tiny * 2**24)
    for row, head, group, i in small.nonzero().tolist():
        of_all = (k[row, head] @ grouped[row, head, group, i]) * scale
        seen = visible[row, min(head, visible.shape[1] - 1), i]
        totals[row, head, group, i] = of_all[seen].logsumexp(-1)
    return totals
