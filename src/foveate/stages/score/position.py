"""Scores that look at no tensor: recency, and chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from foveate.core.layer import Layer, Scores
from foveate.core.parameters import Seed
from foveate.core.spec import stage


@stage("recency")
@dataclass(frozen=True, kw_only=True)
class Recency:
    """The later, the more important."""

    head_by_head: ClassVar[bool] = True

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.pos.float())


@stage("random_score")
@dataclass(frozen=True, kw_only=True)
class RandomScore:
    """Uniform in [0, 1), drawn per layer, KV head and token from ``seed``.

    A token's draw depends on its position alone, not on the batch, the padding or the prompt's
    length; it is drawn on the CPU, so every device agrees.
    """

    seed: Seed = 0

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + layer.ordinal)
        longest, h = int(layer.lengths.max()), layer.k.shape[1]
        drawn = torch.rand(longest, h, generator=generator).t().to(layer.k.device)
        drawn = drawn.expand(layer.k.shape[0], h, longest)
        return Scores(drawn.gather(2, layer.pos.clamp(0, longest - 1)))
