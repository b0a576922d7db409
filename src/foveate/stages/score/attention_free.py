"""Scores without attention: from keys and values alone, recency, and chance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.parameters import Factor, Seed
from foveate.policies.spec import stage
from foveate.stages.score.bases import WithoutQueries


@stage("key_norm", head_by_head=True)
class KeyNorm(WithoutQueries):
    """Minus the L2 norm of the key, in float32: keys of low norm attract attention.

    Source: Devoto et al. (arXiv:2406.11430), section 3.
    """

    def __call__(self, layer: Layer) -> Scores:
        return Scores(-layer.k.float().norm(dim=-1))


@stage("value_norm", head_by_head=True)
class ValueNorm(WithoutQueries):
    """L2 norm of the value, in float32: the size of a token's contribution.

    Source: InfiniPot-V (arXiv:2506.15745), the VaN score.
    """

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.v.float().norm(dim=-1))


@stage("key_difference", head_by_head=True)
class KeyDifference(WithoutQueries):
    """Minus the cosine between a key and the mean of all keys' directions, in float32.

    ``value`` times the logarithm of the value's norm is added, which KeyDiff does not have.

    Source: KeyDiff (arXiv:2504.15364), section 3.
    """

    value: Factor = 0.0

    def __call__(self, layer: Layer) -> Scores:
        direction = F.normalize(layer.k.float(), dim=-1)
        real = layer.valid[..., None]
        mean = direction.masked_fill(~real, 0.0).sum(2, keepdim=True) / real.sum(2, keepdim=True)
        different = -F.cosine_similarity(direction, mean, dim=-1)
        if not self.value:
            return Scores(different)
        norm = layer.v.float().norm(dim=-1).clamp_min(1e-6)
        return Scores(different + self.value * norm.log())


@stage("recency", head_by_head=True)
class Recency(WithoutQueries):
    """Position of the token: later ones are more important."""

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.pos.float())


@stage("random_score")
class RandomScore(WithoutQueries):
    """Uniform random number in [0, 1), drawn per layer, KV head and token from ``seed``.

    A token's draw depends on its position alone, not on the batch, the padding or the prompt's
    length. It is drawn on the CPU, so every device agrees.
    """

    seed: Seed = 0

    def __call__(self, layer: Layer) -> Scores:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + layer.ordinal)
        longest, h = int(layer.lengths.max()), layer.k.shape[1]
        shape, where = (longest, h), generator.device
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=where)
        drawn = drawn.t().to(layer.k.device).expand(layer.k.shape[0], h, longest)
        return Scores(drawn.gather(2, layer.pos.clamp(0, longest - 1)))


_STEPS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


def gumbel(seed: int, *coordinates: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Draw standard Gumbel noise in float32, one number for each combination of coordinates."""
    return -(-uniform(seed, *coordinates).log()).log().float()


def uniform(seed: int, *coordinates: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Draw from (0, 1) in float64 by hashing, one number for each combination of coordinates.

    Coordinates broadcast.
    """
    mixed: Tensor = torch.full_like(coordinates[0], _signed(seed * _STEPS[0]))
    for coordinate in coordinates:
        mixed = _hash(mixed + coordinate.long() * _signed(_STEPS[0]))
    return ((_shifted(mixed, 11) >> 1).double() + 0.5) / 2**52


def _hash(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Apply the finaliser of splitmix64; int64 products wrap around."""
    x = (x ^ _shifted(x, 30)) * _signed(_STEPS[1])
    x = (x ^ _shifted(x, 27)) * _signed(_STEPS[2])
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift to the right and fill with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Convert a number modulo 2^64 to an int64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
