"""Linear maps from a pair to a number, head by head: scores by a profile, and their fitting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.profiles.far_keys import read_nearer
from foveate.stages.score.bases import ByProfile


@dataclass(frozen=True, kw_only=True)
class LinearMaps(ByProfile):
    """Score by linear maps of every pair's key and value [d + e], and optionally of facts of both.

    It is in float32. Keys far beyond the profile's prompts are scored as if they were at their end.
    """

    def facts(self, layer: Layer) -> tuple[Float[Tensor, "b h n f"], ...]:
        """Return the facts that the maps read as well: one tensor, or none."""
        return ()

    def mapped(self, layer: Layer) -> Float[Tensor, "b h n"]:
        """Return the output of the maps for every pair."""
        (_, h, _, d), e = layer.k.shape, layer.v.shape[-1]
        profile = self.calibrated
        layer = read_nearer(layer, profile, self.profile)
        facts = self.facts(layer)
        shapes = {"of_facts": (h, facts[0].shape[-1])} if facts else {}
        of_key, of_value, offset, *of_facts = profile.of(
            layer, of_key=(h, d), of_value=(h, e), offset=(h,), **shapes
        )
        values = offset[:, None]
        inputs = (*facts, layer.k, layer.v)
        for numbers, weights in zip(inputs, (*of_facts, of_key, of_value), strict=True):
            values = values + (numbers.float() @ weights[..., None])[..., 0]
        return values


def products(
    layer: Layer, goals: Float[Tensor, "b h n"], *facts: Float[Tensor, "b h n f"]
) -> tuple[Float64[Tensor, "h f1 f1"], Float64[Tensor, "h f1"]]:
    """Return the sums over all real pairs that a ridge regression of the goals is solved from."""
    inputs = [torch.ones_like(goals)[..., None], *facts, layer.k.float(), layer.v.float()]
    pairs = torch.cat(inputs, dim=-1).masked_fill(~layer.valid[..., None], 0.0)
    pairs = pairs.double().transpose(0, 1).flatten(1, 2)
    targets = goals.masked_fill(~layer.valid, 0.0).double().transpose(0, 1).flatten(1)
    return pairs.mT @ pairs, (pairs.mT @ targets[..., None])[..., 0]
