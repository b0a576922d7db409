"""SnapKV's score: attention that the observation window pays to the rest of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.parameters import Kernel, Recent, Window
from foveate.core.spec import stage
from foveate.ops.window_attention import window_sums
from foveate.stages.recent import (
    budget_of,
    is_recent,
    most_recent,
    outside,
    recent_tokens,
)
from foveate.stages.score.groups import Reduction, over_group
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

    reads_window_sums: ClassVar[bool] = True
    window: Window = 32
    kernel: Kernel = 5
    pool: Pool = "avg"
    group: Reduction = "mean"
    pool_window: bool = False

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def __call__(self, layer: Layer) -> Scores:
        attention, scores = on_average(layer, self.window, self.group)
        window = is_recent(layer, self.window, budget_of(layer, self.window))
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


class OnAverage(NamedTuple):
    """What a window's queries pay to every slot, on average: the mean over the query heads of a KV
    head, and what they are reduced to.
    """

    mean: Float[Tensor, "b h n"]
    reduced: Float[Tensor, "b h n"]


def on_average(layer: Layer, window: Recent, group: Reduction = "mean") -> OnAverage:
    """Over the last ``window`` queries."""
    real = window_of(layer, window)
    counts = layer.once("shares of a window", lambda: (
        _counts((real / real.sum(-1, keepdim=True))[:, None], layer.groups, group)
    ), real, layer.groups, group)  # fmt: skip
    sums = _added_up(layer, counts, 0.0)
    if group == "mean":  # which asks for no query head by itself
        mean = sums[:, :, 0]
        return OnAverage(mean, mean)
    return OnAverage(over_group(sums, "mean"), over_group(sums, group))


def by_kinds(
    layer: Layer, window: Recent, n: float, kinds: Bool[Tensor, "b c m"], group: Reduction
) -> Float[Tensor, "b h c n"]:
    """What the last ``window`` queries pay to every slot, as a softmax-n, added up over those of
    each kind and reduced over the query heads of a KV head.
    """
    real = window_of(layer, window)
    marked = (kinds[..., -real.shape[1] :] & real[:, None]).float()
    sums = _added_up(layer, _counts(marked, layer.groups, group), n)
    if group == "mean":
        return sums
    b, h, _, slots = sums.shape
    of_kinds = sums.view(b, h, -1, layer.groups, slots).unbind(2)
    return torch.stack([over_group(of, group) for of in of_kinds], dim=2)


def _counts(
    marked: Float[Tensor, "b c w"], groups: int, group: Reduction
) -> Float[Tensor, "b r g w"]:
    """How much each query counts in every sum. The mean over ``groups`` query heads is one sum;
    what else they are reduced to is found from one sum for each.
    """
    if group == "mean":
        return (marked / groups)[:, :, None].repeat(1, 1, groups, 1)
    own = torch.eye(groups, device=marked.device)
    return (marked[:, :, None, None] * own[:, :, None]).flatten(1, 2)


def _added_up(layer: Layer, counts: Float[Tensor, "b r g w"], n: float) -> Float[Tensor, "b h r n"]:
    """What the last queries pay, each counted as often as ``counts`` says. Rows may have windows
    of different lengths (shares of their budgets); the last query is in every window, padding in
    none.
    """
    if layer.window is not None and counts.shape[-1] <= layer.window.queries:
        return layer.window.sums(counts, n)
    return reduce(add, _read(layer, counts, n))  # one block at a time: there may be hundreds


def _read(
    layer: Layer, counts: Float[Tensor, "b r g w"], n: float
) -> Iterator[Float[Tensor, "b h r n"]]:
    """Sums over each block of queries."""
    w = counts.shape[-1]
    q, visible = layer.q[:, :, -w:], layer.last_visible(w)
    if w <= ROWS:
        yield window_sums(q, layer.k, visible, counts, layer.scale, n)
        return
    for some in blocks(w):
        yield window_sums(
            q[:, :, some], layer.k, visible[:, :, some], counts[..., some], layer.scale, n
        )
