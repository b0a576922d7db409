"""CurDKV: tokens whose keys and values have high leverage among their neighbours.

Scores are those of NVIDIA's kvpress: leverage is approximated by the squared norm of a key or
value, over the sum of squared norms in a window around it. Differences from it: random projections
follow from ``seed``; sinks are protected by the selection and scored like other tokens; float32
throughout.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Columns, Count, Positive, Seed
from foveate.stages import TopK, Uniform
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.token_span import TokenSpan, span

Leverage = Literal["product", "mean", "key", "value"]
TINY = 1e-30


@stage("cur_leverage", head_by_head=True)
class CurLeverage(WithoutQueries):
    """Squared norms of keys and values, each over its sum in windows of ``local`` tokens.

    ``leverage`` combines the two: their product, their mean, or one of them; the result is divided
    by its sum. ``local=None`` takes the norms as they are.

    With ``rank`` keys and values are first multiplied by a random Gaussian matrix of that many
    columns, the same for all heads of a layer, drawn from ``seed``.

    Source: CurDKV (arXiv:2509.15038), approximate leverage scores, and kvpress.
    """

    leverage: Leverage = "product"
    local: Positive | None = 16
    rank: Columns | None = None
    seed: Seed = 0

    def __call__(self, layer: Layer) -> Scores:
        tokens = span(layer.slots)
        k, v = (self._squares(layer, x, tokens) for x in (layer.k, layer.v))
        mixed = {"product": k * v, "mean": (k + v) / 2, "key": k, "value": v}[self.leverage]
        return Scores(tokens.put(mixed / mixed.sum(-1, keepdim=True).clamp_min(TINY), 0.0))

    def _squares(self, layer: Layer, x: Float[Tensor, "b h n d"], tokens: TokenSpan) -> Tensor:
        x = x.float()
        if self.rank is not None:
            widest = max(layer.k.shape[-1], layer.v.shape[-1])
            x = x @ self._drawn(layer.ordinal, widest, self.rank)[: x.shape[-1]].to(x.device)
        squares = tokens.take(x.square().sum(-1))
        return squares if self.local is None else of_windows(squares, self.local)

    def _drawn(self, ordinal: int, d: int, rank: int) -> Float[Tensor, "d r"]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + ordinal)
        shape, where = (d, rank), generator.device
        drawn = torch.randn(shape, generator=generator, dtype=torch.float32, device=where)
        return drawn / math.sqrt(rank)


def of_windows(squares: Float[Tensor, "b h l"], width: int) -> Float[Tensor, "b h l"]:
    """Divide each value by the sum of its window; the last window may be shorter."""
    tokens = squares.shape[-1]
    width = min(width, max(1, tokens))
    padded = F.pad(squares, (0, -tokens % width))
    windows = padded.view(*squares.shape[:2], -1, width)
    shares: Tensor = windows / windows.sum(-1, keepdim=True).clamp_min(TINY)
    return shares.flatten(2)[..., :tokens]


@method("sengupta2025curdkv")
def cur(
    *,
    budget: Amount,
    leverage: Leverage = "product",
    local: Positive | None = 16,
    rank: Columns | None = None,
    seed: Seed = 0,
    sinks: Count = 4,
) -> Policy:
    """Tokens whose keys and values have large norms compared with their neighbours'.

    Score: the product of the squared norms of key and value, each over its sum in a window.

    Args:
        leverage: Combination of key and value norms: product, mean, key or value.
        local: Tokens of the window that norms are compared in; null: no window.
        rank: Columns of a random projection applied before the norms; null: none.

    Defaults:
        kvpress
    """
    return Policy(
        score=CurLeverage(leverage=leverage, local=local, rank=rank, seed=seed),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks),
    )
