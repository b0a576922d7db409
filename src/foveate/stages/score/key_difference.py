"""KeyDiff's score: keys that differ from the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from foveate.core.layer import Layer, Scores
from foveate.core.spec import stage


@stage("key_difference")
@dataclass(frozen=True, kw_only=True)
class KeyDifference:
    """Minus the cosine between a key and the mean of all keys' directions, in float32.

    Source: KeyDiff (arXiv:2504.15364), section 3.
    """

    head_by_head: ClassVar[bool] = True

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        direction = F.normalize(layer.k.float(), dim=-1)
        real = layer.valid[..., None]
        mean = direction.masked_fill(~real, 0.0).sum(2, keepdim=True) / real.sum(2, keepdim=True)
        return Scores(-F.cosine_similarity(direction, mean, dim=-1))
