"""DivPrune: visual tokens that differ from each other, whatever looks at them.

The paper prunes an image's tokens before the language model reads them, by the cosine distance of
their embeddings; it is no cache policy. This is its selection (max-min diversity, the greedy
algorithm) read as one: after the prefill, by the distance of keys, each KV head for itself. So it
saves no prefill, and a token that leaves the cache has been read.

Every image token competes with those of all images. Text stands before images, as the paper keeps
all of it: where it does not fit, the newest stays, beside the first `sinks` tokens; with
`protect_text=True` a budget that does not hold all of it is refused. What is kept anyhow counts as
chosen, if it is visual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.layer import Scored
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Recent
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.score.rows import blocks
from foveate.stages.select import TopK, highest


@stage("max_min")
@dataclass(frozen=True, kw_only=True)
class MaxMin(TopK):
    """Beside what ``top_k`` always keeps: text, the highest scores of it if not all fits; in the
    places that it leaves, one visual token after the other, each the farthest from all that were
    chosen before it, by the cosine distance of keys in float32. The first is the one whose nearest
    neighbour is farthest. Of equals the earlier wins.

    Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
    """

    head_by_head: ClassVar[bool] = True

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, vision = scored.scores.values, scored.layer.vision
        protected, free = values == torch.inf, values.isfinite()
        places = counts - protected.sum(-1)
        text = free & ~vision
        told = torch.minimum(text.sum(-1), places)
        kept = protected | highest(values.masked_fill(~text, -torch.inf), told) & text
        seen = spread(scored.layer.k, free & vision, protected & vision, places - told)
        return kept | seen


def spread(
    k: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """Of the ``free`` slots, ``counts`` that are far from each other and from those chosen."""
    marked = free | chosen
    some = marked.any(0).any(0).nonzero()[:, 0]  # not text, whose distances nobody asks for
    unit = F.normalize(k[:, :, some].float(), dim=-1)
    unit = unit.masked_fill(~marked[:, :, some, None], 0.0)
    found = torch.zeros_like(free)
    found[:, :, some] = _farthest(unit, free[:, :, some], chosen[:, :, some], counts)
    return found


def _farthest(
    unit: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """One after the other, each farthest from all before it."""
    nearest, alone = _nearest(unit, chosen), ~chosen.any(-1, keepdim=True)
    if bool(alone.any()):  # nothing to be far from yet: the most isolated is first
        nearest = torch.where(alone, _nearest(unit, free), nearest)
    left = nearest.masked_fill(~free, -torch.inf)  # and so for good what has been chosen
    order = []
    for step in range(int(counts.max())):
        best = left.argmax(-1, keepdim=True)
        order.append(best)
        one = unit.take_along_dim(best[..., None], dim=2)
        distance = 1 - (unit @ one.mT).squeeze(-1)
        nearer = torch.minimum(left, distance)
        left = torch.where(alone & free, distance, nearer) if step == 0 else nearer
        left.scatter_(-1, best, -torch.inf)
    return _first(order, counts, free)


def _first(
    order: list[Int[Tensor, "b h 1"]], counts: Int[Tensor, "b h"], like: Bool[Tensor, "b h n"]
) -> Bool[Tensor, "b h n"]:
    """The first ``counts`` slots of the order."""
    n, places = like.shape[2], torch.cat([*order, counts.new_zeros(*counts.shape, 1)], dim=-1)
    late = torch.arange(places.shape[2], device=places.device) >= counts[..., None]
    beyond = F.pad(torch.zeros_like(like), (0, 1))
    return beyond.scatter(-1, places.masked_fill(late, n), True)[..., :n]


def _nearest(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Tensor:
    """The distance of every slot to the nearest other one that is marked; infinite for none."""
    if not bool(marked.any()):
        return torch.full_like(unit[..., 0], torch.inf)
    return torch.cat(list(_nearest_of(unit, marked)), dim=2)


def _nearest_of(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Iterator[Tensor]:
    out = torch.zeros_like(unit[..., 0]).masked_fill(~marked, torch.inf)[:, :, None]
    for some in blocks(unit.shape[2]):
        distance = (1 - unit[:, :, some] @ unit.mT).add_(out)
        distance.diagonal(some.start, 2, 3).fill_(torch.inf)
        yield distance.amin(-1)


@method(
    Paper(
        title="DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models",
        authors=(
            "Alvar, Saeed Ranjbar",
            "Singh, Gursimran",
            "Akbari, Mohammad",
            "Zhang, Yong",
        ),
        year=2025,
        venue="IEEE/CVF Conference on Computer Vision and Pattern Recognition",
        key="alvar2025divprune",
        arxiv="2503.02175",
        code="https://github.com/vbdi/divprune",
    ),
    adds=("select",),
)
def divprune(
    *, budget: Amount, recent: Recent = 0, sinks: Count = 4, protect_text: bool = False
) -> Policy:
    """Keeps text, and visual tokens whose keys differ from each other; needs no attention.

    Defaults:
        no parameter in the paper; `sinks`: here, for text that does not fit
    """
    return Policy(
        score=Recency(),
        budget=Uniform(amount=budget),
        select=MaxMin(recent=recent, sinks=sinks, protect_text=protect_text),
    )
