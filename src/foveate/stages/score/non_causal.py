"""Bidirectional attention within parts of the prompt, which needs no question."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.cache.slots import Slots, derived
from foveate.errors import InvalidParameter
from foveate.policies.parameters import Count, Kernel, Positive
from foveate.policies.spec import stage
from foveate.stages.score.token_span import Over, TokenSpan, best, span, standardised


@stage("non_causal_attention")
class NonCausalAttention:
    """Attention that each token receives from earlier and later queries of its part of the prompt.

    Parts have ``chunk`` tokens. The softmax over the part is summed over its queries, averaged over
    the query heads of a KV head, multiplied by the value's norm (``value_norm``), averaged over
    ``kernel`` neighbours and standardised over the heads of a layer or each head by itself
    (``over``).

    Logits are q k, without a scale, as in the authors' codes; ``scaled`` uses the model's. In a
    last part that is shorter, kvpress lets its padding take part in the softmax: ``as_released``.

    The first ``sinks`` and the last ``recent`` tokens are left out of all that, and score highest.

    Source: Compactor (arXiv:2507.08143), non-causal attention scores, and kvpress.
    """

    chunk: Positive = 256
    kernel: Kernel = 3
    value_norm: bool = True
    scaled: bool = False
    sinks: Count = 0
    recent: Count = 0
    over: Over = "layer"
    as_released: bool = False

    @property
    def head_by_head(self) -> bool:
        return self.over == "head"

    def queries(self, tokens: int) -> int:
        return 2**31  # all queries

    def __call__(self, layer: Layer) -> Scores:
        part = span(layer.slots, self.sinks, self.recent)
        inside = part.inside
        values = torch.cat([*self._chunks(layer, part)], dim=2).masked_fill(~inside, 0.0)
        if self.value_norm:
            values = values * part.take(layer.v.float().norm(dim=-1))
        if values.shape[2]:
            values = F.avg_pool1d(values, self.kernel, stride=1, padding=self.kernel // 2)
        values = standardised(values, inside, self.over)
        return Scores(part.put(values, best(values)))

    def _chunks(self, layer: Layer, part: TokenSpan) -> Iterator[Float[Tensor, "b h c"]]:
        """Iterate over the parts, with the attention that their tokens receive."""
        q, k = part.take(own_queries(layer)), part.take(layer.k)
        yield k.new_zeros((*k.shape[:2], 0), dtype=torch.float32)
        for first in range(0, part.longest, self.chunk):
            block = slice(first, first + self.chunk)
            queries = q[:, :, block].float().mul(layer.scale if self.scaled else 1.0)
            weights = queries.flatten(2, 3) @ k[:, :, block].float().mT
            if first + self.chunk <= part.shortest:
                yield weights.softmax(-1).sum(2) / q.shape[3]
            else:
                yield self._short(weights.view(*queries.shape[:4], -1), part, first)

    def _short(
        self, logits: Float[Tensor, "b h c g c"], part: TokenSpan, first: int
    ) -> Float[Tensor, "b h c"]:
        """Return the attention within a part that is not full in every head."""
        real = part.inside[:, :, first : first + self.chunk]
        logits = logits.masked_fill(~real[:, :, None, None], -torch.inf)
        weights, missing = logits.softmax(-1), self._missing(part, first)[..., None]
        if self.as_released:
            total = logits.logsumexp(-1, keepdim=True)
            weights = weights * (total - missing.log()[..., None, None]).sigmoid()
        paid = weights.masked_fill(~real[..., None, None], 0.0).sum(2).mean(2)
        return paid + missing / self.chunk if self.as_released else paid

    def _missing(self, part: TokenSpan, first: int) -> Float[Tensor, "b h"]:
        """Return the number of tokens that a head's last part lacks, if it begins at ``first``."""
        is_last_part = (part.count > first) & (part.count < first + self.chunk)
        return torch.where(is_last_part, first + self.chunk - part.count, 0).float()


def own_queries(layer: Layer) -> Float[Tensor, "b h n g d"]:
    """Return the query of each slot's token, of every query head that reads the slot.

    Raises:
        InvalidParameter: the queries of some tokens are not known.
    """
    b, hq, m, d = layer.q.shape
    h, n = layer.k.shape[1:3]
    q = layer.q.view(b, h, hq // h, m, d).transpose(2, 3)
    index = _query_indices(layer.slots)
    if index is None:
        return q
    if bool((layer.valid & (index < 0)).any()):
        raise InvalidParameter(
            f"non-causal attention needs the query of every slot, and layer {layer.number} has "
            f"{m} queries for {n} slots: compress once, after the prefill."
        )
    return q.take_along_dim(index.clamp_min(0)[..., None, None], dim=2)


@derived
def _query_indices(slots: Slots) -> Int[Tensor, "b h n"] | None:
    """Return the index of each slot's own query; None if queries are in the order of the slots.

    -1 where the query is unknown.
    """
    pos, q_pos = slots.pos, slots.q_pos
    if q_pos.shape[1] == pos.shape[2] and bool((pos == q_pos[:, None]).all()):
        return None
    positions = pos.flatten(1).contiguous()
    index = torch.searchsorted(q_pos.contiguous(), positions).clamp_max(q_pos.shape[1] - 1)
    return torch.where(q_pos.gather(1, index) == positions, index, -1).view_as(pos)
