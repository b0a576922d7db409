"""SnapKV's score: attention that the observation window pays to the rest of the prompt."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores, WindowWeights
from foveate.cache.slots import Slots, derived
from foveate.ops.window_attention import window_sums
from foveate.policies.parameters import Kernel, Recent, Window
from foveate.policies.spec import stage
from foveate.stages.recent import before, budget_of, most_recent, recent_tokens
from foveate.stages.score.attention_rows import ROWS, Reduction, blocks, over_group

Pool = Literal["avg", "max", "none"]


@stage("window_attention", head_by_head=True)
class WindowAttention:
    """Mean attention of the last ``window`` queries, pooled along the slots before the window.

    The softmax is in float32 and reduced over the query heads of a KV head before pooling. The
    window itself scores zero: selections protect it. The part "observed" is the score of all slots
    before pooling; "attention" is its mean over the query heads.

    ``window`` is a number of queries or a share of the budget. ``pool`` is "avg" (zero padding that
    counts, as in the release), "max" or "none", with an odd ``kernel``; with ``pool_window`` the
    pooling of the last slots before the window reaches into it.

    Source: SnapKV (arXiv:2404.14469), section 4 and the release.
    """

    window: Window = 32
    kernel: Kernel = 5
    pool: Pool = "avg"
    group: Reduction = "mean"
    pool_window: bool = False

    def queries(self, tokens: int) -> int:
        window = self.window
        return window if isinstance(window, int) else most_recent(window, tokens)

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights:
        return on_average(slots, self.window, groups, self.group)

    def __call__(self, layer: Layer) -> Scores:
        attention, scores = paid_on_average(layer, self.window, self.group)
        outside = before(layer.slots, self.window)
        pooled = self.pooled(scores if self.pool_window else scores * outside) * outside
        return Scores(pooled, parts={"attention": attention, "observed": scores})

    def pooled(self, scores: Float[Tensor, "b h s"]) -> Float[Tensor, "b h s"]:
        """Pool along the slots, keeping their number; by the maximum it is DAVID eq. 3."""
        if self.pool == "none" or scores.shape[-1] == 0:
            return scores
        pool = F.avg_pool1d if self.pool == "avg" else F.max_pool1d
        return pool(scores, self.kernel, stride=1, padding=self.kernel // 2)


@derived
def window_of(slots: Slots, window: Recent) -> Bool[Tensor, "b w"]:
    """Mark the queries of each row's window, among the last queries of the longest window."""
    sizes = recent_tokens(window, budget_of(slots, window)).clamp_min(1)
    w = min(int(sizes.max()), slots.q_pos.shape[1])
    return slots.q_pos[:, -w:] >= (slots.lengths - sizes).clamp_min(0)[:, None]


@derived
def on_average(slots: Slots, window: Recent, groups: int, group: Reduction) -> WindowWeights:
    """Weight every query of a row's window the same, 1 in total."""
    real = window_of(slots, window)
    of_each = real.float() / real.sum(-1, keepdim=True)
    return WindowWeights(counts_of(of_each[:, None], groups, group))


@derived
def by_modality(
    slots: Slots, window: Recent, n: float, groups: int, group: Reduction
) -> WindowWeights:
    """Weight the window's queries of text in the first sum, of visual tokens in the second.

    The sums are those of CSP eq. 1, of a softmax-n.
    """
    real = window_of(slots, window)
    kinds = torch.stack([~slots.q_vision, slots.q_vision], dim=1)
    marked = (kinds[..., -real.shape[1] :] & real[:, None]).float()
    return WindowWeights(counts_of(marked, groups, group), n)


def counts_of(
    marked: Float[Tensor, "b c w"], groups: int, group: Reduction
) -> Float[Tensor, "b r g w"]:
    """Return the weight of each query in every sum.

    The mean over ``groups`` query heads is one sum; other reductions need one sum for each head.
    """
    if group == "mean":
        return (marked / groups)[:, :, None].repeat(1, 1, groups, 1)
    own = torch.eye(groups, dtype=marked.dtype, device=marked.device)
    return (marked[:, :, None, None] * own[:, :, None]).flatten(1, 2)


class OnAverage(NamedTuple):
    """Mean attention of a window's queries, reduced over a KV head's query heads.

    ``mean`` is the mean over the query heads, ``reduced`` the reduction that was requested.
    """

    mean: Float[Tensor, "b h n"]
    reduced: Float[Tensor, "b h n"]


def paid_on_average(layer: Layer, window: Recent, group: Reduction = "mean") -> OnAverage:
    """Return the mean attention of the last ``window`` queries (DAVID eq. 2)."""
    sums = paid(layer, on_average(layer.slots, window, layer.groups, group))
    if group == "mean":  # one sum over all query heads is enough
        mean = sums[:, :, 0]
        return OnAverage(mean, mean)
    return OnAverage(over_group(sums, "mean"), over_group(sums, group))


def paid_by_modality(
    layer: Layer, window: Recent, n: float, group: Reduction
) -> Float[Tensor, "b h c n"]:
    """Return the summed softmax-n of the last ``window`` queries, of text and of visual tokens.

    Both sums are reduced over the query heads of a KV head.
    """
    sums = paid(layer, by_modality(layer.slots, window, n, layer.groups, group))
    if group == "mean":
        return sums
    b, h, _, slots = sums.shape
    of_kinds = sums.view(b, h, -1, layer.groups, slots).unbind(2)
    return torch.stack([over_group(of, group) for of in of_kinds], dim=2)


def paid(layer: Layer, weights: WindowWeights) -> Float[Tensor, "b h r n"]:
    """Return the weighted sums of the last queries' attention to every slot.

    If the attention has already computed them with these very weights, they are reused.
    """
    precomputed = layer.window_sums
    if precomputed is not None and precomputed.weights is weights:
        return precomputed.sums
    counts, n = weights
    w = counts.shape[-1]
    q, visible = layer.q[:, :, -w:], layer.slots.last_visible(w)
    if w <= ROWS:
        return window_sums(q, layer.k, visible, counts, layer.scale, n)
    return reduce(  # one block at a time: there may be hundreds
        add,
        (
            window_sums(
                q[:, :, block], layer.k, visible[:, :, block], counts[..., block], layer.scale, n
            )
            for block in blocks(w)
        ),
    )
