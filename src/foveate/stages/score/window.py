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
from foveate.stages.score.rows import ROWS, Reduction, blocks, over_group

Pool = Literal["avg", "max", "none"]


@stage("window_attention", head_by_head=True)
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
        """Pools along the slots, keeping their number: by the maximum it is DAVID eq. 3."""
        if self.pool == "none" or scores.shape[-1] == 0:
            return scores
        pool = F.avg_pool1d if self.pool == "avg" else F.max_pool1d
        return pool(scores, self.kernel, stride=1, padding=self.kernel // 2)


@derived
def window_of(slots: Slots, window: Recent) -> Bool[Tensor, "b w"]:
    """Of the last queries, as many as the longest window of a row: which are in their row's."""
    wanted = recent_tokens(window, budget_of(slots, window)).clamp_min(1)
    w = min(int(wanted.max()), slots.q_pos.shape[1])
    return slots.q_pos[:, -w:] >= (slots.lengths - wanted).clamp_min(0)[:, None]


@derived
def on_average(slots: Slots, window: Recent, groups: int, group: Reduction) -> WindowWeights:
    """Every query of a row's window counts the same, and they count one in all."""
    real = window_of(slots, window)
    of_each = real.float() / real.sum(-1, keepdim=True)
    return WindowWeights(counts_of(of_each[:, None], groups, group))


@derived
def by_modality(
    slots: Slots, window: Recent, n: float, groups: int, group: Reduction
) -> WindowWeights:
    """The window's queries of text tokens count in the first sum, those of visual tokens in the
    second, of a softmax-n: the sums of CSP eq. 1.
    """
    real = window_of(slots, window)
    kinds = torch.stack([~slots.q_vision, slots.q_vision], dim=1)
    marked = (kinds[..., -real.shape[1] :] & real[:, None]).float()
    return WindowWeights(counts_of(marked, groups, group), n)


def counts_of(
    marked: Float[Tensor, "b c w"], groups: int, group: Reduction
) -> Float[Tensor, "b r g w"]:
    """How much each query counts in every sum. The mean over ``groups`` query heads is one sum;
    what else they are reduced to is found from one sum for each.
    """
    if group == "mean":
        return (marked / groups)[:, :, None].repeat(1, 1, groups, 1)
    own = torch.eye(groups, dtype=marked.dtype, device=marked.device)
    return (marked[:, :, None, None] * own[:, :, None]).flatten(1, 2)


class OnAverage(NamedTuple):
    """What a window's queries pay to every slot, on average: the mean over the query heads of a KV
    head, and what they are reduced to.
    """

    mean: Float[Tensor, "b h n"]
    reduced: Float[Tensor, "b h n"]


def paid_on_average(layer: Layer, window: Recent, group: Reduction = "mean") -> OnAverage:
    """By the last ``window`` queries: DAVID eq. 2, over the number r of these."""
    sums = paid(layer, on_average(layer.slots, window, layer.groups, group))
    if group == "mean":  # which asks for no query head by itself
        mean = sums[:, :, 0]
        return OnAverage(mean, mean)
    return OnAverage(over_group(sums, "mean"), over_group(sums, group))


def paid_by_modality(
    layer: Layer, window: Recent, n: float, group: Reduction
) -> Float[Tensor, "b h c n"]:
    """By the last ``window`` queries, as a softmax-n: the sums over those of text tokens and over
    those of visual tokens, reduced over the query heads of a KV head.
    """
    sums = paid(layer, by_modality(layer.slots, window, n, layer.groups, group))
    if group == "mean":
        return sums
    b, h, _, slots = sums.shape
    of_kinds = sums.view(b, h, -1, layer.groups, slots).unbind(2)
    return torch.stack([over_group(of, group) for of in of_kinds], dim=2)


def paid(layer: Layer, weights: WindowWeights) -> Float[Tensor, "b h r n"]:
    """What the last queries pay to every slot, each counted as often as ``weights`` say: as the
    attention has added it up on its way, if it did so with these very weights.
    """
    made = layer.window_sums
    if made is not None and made.weights is weights:
        return made.sums
    counts, n = weights
    w = counts.shape[-1]
    q, visible = layer.q[:, :, -w:], layer.slots.last_visible(w)
    if w <= ROWS:
        return window_sums(q, layer.k, visible, counts, layer.scale, n)
    return reduce(  # one block at a time: there may be hundreds
        add,
        (
            window_sums(
                q[:, :, some], layer.k, visible[:, :, some], counts[..., some], layer.scale, n
            )
            for some in blocks(w)
        ),
    )
