"""SnapKV's score: attention that the observation window pays to the rest of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.core.errors import InvalidParameter
from foveate.core.layer import Layer, Scores, Window
from foveate.core.spec import stage
from foveate.ops.softmax_n import share
from foveate.ops.window_attention import window_sums
from foveate.stages.recent import (
    Recent,
    budget_of,
    check_recent,
    is_recent,
    most_recent,
    outside,
    recent_tokens,
)
from foveate.stages.score.groups import Reduction, check_group, over_group
from foveate.stages.score.rows import ROWS, blocks

Pool = Literal["avg", "max", "none"]


@stage("window_attention")
@dataclass(frozen=True, kw_only=True)
class WindowAttention:
    """Mean over the last ``window`` queries of the softmax in float32, reduced over the query heads
    of a KV head, then pooled along the slots before the window. The window itself scores zero:
    selections protect it. The part "observed" is what is pooled, of all slots; "attention" is the
    same with the mean over the query heads.

    ``window`` is a number of queries or a share of the budget. ``pool`` is "avg" (zero padding that
    counts, as in the release), "max" or "none", with an odd ``kernel``; with ``pool_window`` the
    pooling of the last slots before the window reaches into it.

    Source: SnapKV (arXiv:2404.14469), section 4 and the release.
    """

    window: Recent = 32
    kernel: int = 5
    pool: Pool = "avg"
    group: Reduction = "mean"
    pool_window: bool = False

    def __post_init__(self) -> None:
        check_recent("window", self.window, least=1)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InvalidParameter(f"kernel={self.kernel} is not a positive odd number.")
        if self.pool not in ("avg", "max", "none"):
            raise InvalidParameter(f"pool={self.pool!r}: choose 'avg', 'max' or 'none'.")
        check_group(self.group)

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def __call__(self, layer: Layer) -> Scores:
        paid = on_average(layer, self.window)
        window = is_recent(layer, self.window, budget_of(layer, self.window))
        attention = over_group(paid, "mean")
        scores = attention if self.group == "mean" else over_group(paid, self.group)
        before = outside(layer, window)
        pooled = self.pooled(scores if self.pool_window else scores * before) * before
        return Scores(pooled, parts={"attention": attention, "observed": scores})

    def pooled(self, scores: Float[Tensor, "b h s"]) -> Float[Tensor, "b h s"]:
        """Pools along the slots, keeping their number."""
        if self.pool == "none" or scores.shape[-1] == 0:
            return scores
        pool = F.avg_pool1d if self.pool == "avg" else F.max_pool1d
        return pool(scores, self.kernel, stride=1, padding=self.kernel // 2)


def window_of(layer: Layer, window: Recent) -> Bool[Tensor, "b w"]:
    """Of the last queries, as many as the longest window of a row: which are in their row's."""
    tokens = budget_of(layer, window)

    def found() -> Tensor:
        wanted = recent_tokens(window, tokens).clamp_min(1)
        w = min(int(wanted.max()), layer.q_pos.shape[1])
        return layer.q_pos[:, -w:] >= (layer.lengths - wanted).clamp_min(0)[:, None]

    return layer.once(f"window of {window}", found, layer.q_pos, tokens)


def on_average(layer: Layer, window: Recent) -> Float[Tensor, "b h g s"]:
    """What the last ``window`` queries pay to every slot, on average."""
    real = window_of(layer, window)
    shares = layer.once("shares of a window", lambda: (
        real[..., None].float() / real.sum(-1)[:, None, None]
    ), real)  # fmt: skip
    return _added_up(layer, shares, 0.0)[:, :, :, 0]


def by_kinds(
    layer: Layer, window: Recent, n: float, kinds: Float[Tensor, "b m c"]
) -> Float[Tensor, "b h g c s"]:
    """What the last ``window`` queries pay to every slot, added up, as a softmax-n. ``kinds`` says
    how much each query counts in each of ``c`` sums.
    """
    real = window_of(layer, window)
    return _added_up(layer, kinds[:, -real.shape[1] :] * real[..., None], n)


def _added_up(layer: Layer, counts: Float[Tensor, "b w c"], n: float) -> Float[Tensor, "b h g c s"]:
    """What the last queries pay, each counted as often as ``counts`` says. Rows may have windows
    of different lengths (shares of their budgets); the last query is in every window, padding in
    none.
    """
    if layer.window is not None:
        return _written_out(layer.window, counts, n)
    return reduce(add, _read(layer, counts, n))  # one block at a time: there may be hundreds


def _read(
    layer: Layer, counts: Float[Tensor, "b w c"], n: float
) -> Iterator[Float[Tensor, "b h g c s"]]:
    """Sums over each block of queries."""
    w = counts.shape[1]
    q, visible = layer.q[:, :, -w:], layer.last_visible(w)
    if w <= ROWS:
        yield window_sums(q, layer.k, visible, counts, layer.scale, n)
        return
    for some in blocks(w):
        yield window_sums(
            q[:, :, some], layer.k, visible[:, :, some], counts[:, some], layer.scale, n
        )


def _written_out(
    window: Window, counts: Float[Tensor, "b w c"], n: float
) -> Float[Tensor, "b h g c s"]:
    """The same from what the attention wrote out: softmax-n is a share of each query's softmax."""
    w = counts.shape[1]
    weights, totals = window.weights[..., -w:, :], window.totals[..., -w:, None]
    return (counts[:, None, None] * share(totals, n)).mT @ weights
