"""Predicted effect of losing a pair, from the pair by itself: linear maps of a profile."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import stage
from foveate.stages.score.linear_maps import LinearMaps

FACTS = 5
"""Number of inputs beside the channels of key and value: see :func:`facts`."""
LEAST = 1e-6
"""Lowest norm, attention or damage that is distinguishable from zero."""


def facts(layer: Layer) -> Float[Tensor, "b h n f"]:
    """Return five facts of every pair.

    They are the key's norm and its square, the value's norm and its logarithm, and the cosine
    between the key and the mean of all keys' directions.
    """
    k, v, real = layer.k.float(), layer.v.float(), layer.valid[..., None]
    direction = F.normalize(k, dim=-1).masked_fill(~real, 0.0)
    mean = direction.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
    key, value = k.norm(dim=-1), v.norm(dim=-1)
    cosine = F.cosine_similarity(direction, mean, dim=-1)
    facts_of_pair = (key, key.square(), value, value.clamp_min(LEAST).log(), cosine)
    return torch.stack(facts_of_pair, dim=-1).masked_fill(~real, 0.0)


@stage("foretold_reconstruction")
class ForetoldReconstruction(LinearMaps):
    """Predicted target of a ``profile`` for each pair: the logarithm of the effect of its loss.

    The prediction is by linear maps, one for each KV head, in float32.
    """

    method = "recommended"

    def facts(self, layer: Layer) -> tuple[Float[Tensor, "b h n f"]]:
        return (facts(layer),)

    def __call__(self, layer: Layer) -> Scores:
        return Scores(self.mapped(layer))
