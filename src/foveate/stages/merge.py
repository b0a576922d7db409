"""Merge of every evicted pair into the nearest kept pair."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.errors import InvalidParameter
from foveate.ops.nearest import Nearest, nearest_by_cosine, nearest_by_position
from foveate.policies.spec import stage

By = Literal["cosine", "position"]
How = Literal["averaged", "pivotal", "weighted"]
Within = Literal["all", "modality"]


@stage("merge_nearest")
class MergeNearest:
    """Merge of each evicted pair into its head's nearest kept one; in float32, after RoPE.

    Nearest by the keys' cosine, or by position (the earlier of two equally near ones). Values take
    the keys' targets and weights. With n pairs e merging into the kept pair c:

        averaged   (c + sum e) / (n + 1)                    LOOK-M eq. 10, PrefixKV Table 12
        pivotal    (c + sum (e + c) / 2) / (n + 1)          LOOK-M eq. 11
        weighted   (c + sum s e) / (n + 1), s the cosine    LOOK-M eq. 12

    ``similarity_filter`` merges only part of the pairs, as LOOK-M's release does for "averaged" and
    "weighted": the i-th pairs of all heads' lists, where their mean cosine reaches the mean of all.

    ``within`` "modality" merges visual pairs into visual ones alone, and text into text; where a
    head keeps no pair of a kind, pairs of that kind are dropped. Ours: a page and a question about
    it are not averaged.

    Source: LOOK-M (arXiv:2406.18139), section 3.3; PrefixKV (arXiv:2412.03409), section 4.3.
    """

    by: By = "cosine"
    how: How = "pivotal"
    similarity_filter: bool = False
    within: Within = "all"

    def __post_init__(self) -> None:
        if self.by == "position" and (self.how == "weighted" or self.similarity_filter):
            raise InvalidParameter(
                "by='position' has no similarity to weigh or filter by: use how='averaged' or "
                "'pivotal' without similarity_filter, or by='cosine'."
            )

    @property
    def head_by_head(self) -> bool:
        return not self.similarity_filter  # the filter uses a mean over heads

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        layer = scored.layer
        merged = layer.valid & ~kept
        if not bool(merged.any()):
            return layer.k, layer.v
        if self.within == "all":
            target, cosine = self._nearest(layer, kept)
            merged &= kept.any(-1, keepdim=True)  # a head that keeps nothing merges nothing
        else:
            target, cosine = self._within_modality(layer, kept)
            merged &= kept.gather(2, target)
        if self.similarity_filter:
            merged &= similar(cosine, merged)
        # the weights of LOOK-M eq. 12, and of eqs. 10 and 11
        weight = cosine if self.how == "weighted" else torch.ones_like(cosine)
        weight = weight.masked_fill(~merged, 0.0)  # weights of unmerged slots may be any number
        count = torch.zeros_like(weight).scatter_add_(2, target, merged.float())
        return self._merge(layer.k, target, weight, count), self._merge(
            layer.v, target, weight, count
        )

    def _nearest(self, layer: Layer, kept: Bool[Tensor, "b h n"]) -> Nearest:
        if self.by == "position":
            return nearest_by_position(layer.pos, kept)
        return nearest_by_cosine(layer.k, kept)

    def _within_modality(self, layer: Layer, kept: Bool[Tensor, "b h n"]) -> Nearest:
        """Return each slot's nearest kept slot of its own kind; itself if a head keeps none."""
        vision = layer.vision
        slot = torch.arange(kept.shape[2], device=kept.device).expand(kept.shape)
        cosine = layer.k.new_zeros(kept.shape, dtype=torch.float32)
        for kind in (vision, ~vision):
            kept_of_kind = kept & kind
            if bool(kept_of_kind.any()):
                nearest = self._nearest(layer, kept_of_kind)
                reached = kind & kept_of_kind.any(-1, keepdim=True)
                slot = torch.where(reached, nearest.slot, slot)
                cosine = torch.where(reached, nearest.cosine, cosine)
        return Nearest(slot, cosine)

    def _merge(
        self,
        x: Float[Tensor, "b h n d"],
        target: Int[Tensor, "b h n"],
        weight: Float[Tensor, "b h n"],
        count: Float[Tensor, "b h n"],
    ) -> Float[Tensor, "b h n d"]:
        """Merge the keys or values of all slots; slots that nothing merges into stay as they are.

        Extra memory: twice the pairs in float32, since the work is done in place.
        """
        own, n = x.float(), count[..., None]
        where = target[..., None].expand_as(own)
        portion = (own * weight[..., None]).masked_fill_(weight[..., None] == 0, 0.0)
        total = torch.zeros_like(own).scatter_add_(2, where, portion)
        if self.how == "pivotal":
            total.add_(portion.copy_(own).mul_(n)).div_(2)  # LOOK-M eq. 11
        return torch.where(n > 0, total.add_(own).div_(n + 1), own).to(x.dtype)  # LOOK-M eq. 10


def similar(cosine: Float[Tensor, "b h n"], merged: Bool[Tensor, "b h n"]) -> Bool[Tensor, "b h n"]:
    """Mark the pairs that pass the release's filter, by their ranks in their heads' lists."""
    rank = (merged.long().cumsum(-1) - 1).clamp_min(0)
    real = merged.float()
    zeros = torch.zeros_like(cosine)
    cosine = cosine.masked_fill(~merged, 0.0)
    listed = zeros.scatter_add(2, rank, cosine).sum(1)
    heads = zeros.scatter_add(2, rank, real).sum(1)
    mean_of_rank = listed / heads.clamp_min(1)
    mean = cosine.sum((1, 2)) / real.sum((1, 2)).clamp_min(1)
    passes = mean_of_rank >= mean[:, None]
    return passes[:, None].expand_as(merged).gather(2, rank)
