"""KeyDiff: keys that differ from the rest; needs no attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scores
from foveate.core.method import Paper, method
from foveate.core.parameters import Recent
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


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


@method(
    Paper(
        title="KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
        "Resource-Constrained Environments",
        authors=(
            "Park, Junyoung",
            "Jones, Dalton",
            "Morse, Matthew J.",
            "Goel, Raghavv",
            "Lee, Mingu",
            "Lott, Chris",
        ),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="park2025keydiff",
        arxiv="2504.15364",
    ),
)
def keydiff(
    *,
    budget: Amount,
    recent: Recent = 0,
) -> Policy:
    """Keeps the tokens whose keys differ most from the mean key; needs no attention."""
    return Policy(score=KeyDifference(), budget=Uniform(amount=budget), select=TopK(recent=recent))
