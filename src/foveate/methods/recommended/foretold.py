"""What the loss of a pair would do, foretold from the pair by itself: linear maps of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.spec import stage
from foveate.profiles.far_keys import read_nearer
from foveate.profiles.tensor_profile import TensorProfile, load_tensors

FACTS = 5
"""Beside the channels of key and value: see :func:`facts`."""
LEAST = 1e-6
"""The least norm, attention or damage that is told apart from none."""


def facts(layer: Layer) -> Float[Tensor, "b h n f"]:
    """Of every pair: the key's norm and its square, the value's norm and its logarithm, and the
    cosine between the key and the mean of all keys' directions.
    """
    k, v, real = layer.k.float(), layer.v.float(), layer.valid[..., None]
    direction = F.normalize(k, dim=-1).masked_fill(~real, 0.0)
    mean = direction.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
    key, value = k.norm(dim=-1), v.norm(dim=-1)
    likeness = F.cosine_similarity(direction, mean, dim=-1)
    facts_of_pair = (key, key.square(), value, value.clamp_min(LEAST).log(), likeness)
    return torch.stack(facts_of_pair, dim=-1).masked_fill(~real, 0.0)


@stage("foretold_reconstruction")
@dataclass(frozen=True, kw_only=True)
class ForetoldReconstruction:
    """What the profile's target is of a pair, by the linear maps of a ``profile``: a logarithm of
    what its loss would do; in float32.
    """

    profile: str

    def __post_init__(self) -> None:
        _ = self.calibrated

    @property
    def calibrated(self) -> TensorProfile:
        """The profile in use."""
        return load_tensors(self.profile, "recommended")

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        (_, h, _, d), e = layer.k.shape, layer.v.shape[-1]
        profile = self.calibrated
        layer = read_nearer(layer, profile, self.profile)
        of_key, of_value, of_facts, offset = profile.of(
            layer, of_key=(h, d), of_value=(h, e), of_facts=(h, FACTS), offset=(h,)
        )
        values = offset[:, None] + (facts(layer) @ of_facts[..., None])[..., 0]
        for pairs, weights in ((layer.k, of_key), (layer.v, of_value)):
            values = values + (pairs.float() @ weights[..., None])[..., 0]
        return Scores(values)
