"""Exact t-SNE of a few hundred points.

van der Maaten and Hinton, JMLR 9 (2008), section 3: the symmetric variant with early exaggeration,
momentum and gains.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

STEPS, EXAGGERATED, LOUDER, RATE = 400, 100, 4.0, 0.2
BISECTIONS = 40


def tsne(
    points: Float[Tensor, "n d"], *, perplexity: float = 30.0, seed: int = 0
) -> Float[Tensor, "n 2"]:
    """Embed the points in two dimensions, in float64.

    Args:
        points: at least four.
        perplexity: of each point's neighbors; at most a third of the points is taken.
        seed: of the initial coordinates.
    """
    count = len(points)
    affinity = affinities(points.double(), min(perplexity, (count - 1) / 3))
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(count, 2, generator=generator, dtype=torch.float64, device="cpu")
    embedding = 1e-4 * start
    speed, gains = torch.zeros_like(embedding), torch.ones_like(embedding)
    for step in range(STEPS):
        louder = LOUDER if step < EXAGGERATED else 1.0
        slope = _slope(louder * affinity, embedding)
        gains = torch.where(slope.sign() == speed.sign(), 0.8 * gains, gains + 0.2).clamp_min(0.01)
        speed = (0.5 if step < EXAGGERATED else 0.8) * speed - RATE * count * gains * slope
        embedding = embedding + speed
        embedding = embedding - embedding.mean(0)
    return embedding


def affinities(points: Float[Tensor, "n d"], perplexity: float) -> Float[Tensor, "n n"]:
    """Return the symmetric joint probabilities, which sum to 1. Before it is symmetrised, each row
    has the perplexity (eq. 1, by bisection of the precision).
    """
    apart = torch.cdist(points, points).square()
    apart = apart / apart.mean()
    apart.fill_diagonal_(torch.inf)
    low = torch.zeros_like(apart[:, :1])
    high = torch.full_like(low, torch.inf)
    precision = torch.ones_like(low)
    goal = apart.new_tensor(perplexity).log()
    for _ in range(BISECTIONS):
        near = torch.softmax(-precision * apart, -1)
        entropy = -(near * near.clamp_min(1e-300).log()).sum(-1, keepdim=True)
        low = torch.where(entropy > goal, precision, low)
        high = torch.where(entropy > goal, high, precision)
        precision = torch.where(high.isinf(), 2 * precision, (low + high) / 2)
    near = torch.softmax(-precision * apart, -1)
    return (near + near.T) / (2 * len(points))


def _slope(affinity: Float[Tensor, "n n"], embedding: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """Return the gradient of the divergence (eq. 5), without its factor of 4."""
    close = 1 / (1 + torch.cdist(embedding, embedding).square())
    close = close - torch.diag(close.diagonal())
    force = (affinity - close / close.sum()) * close
    return force.sum(1, keepdim=True) * embedding - force @ embedding
