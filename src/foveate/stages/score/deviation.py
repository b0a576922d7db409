"""RoCo's score: how much attention a token receives on average, and how much that varies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.spec import stage
from foveate.stages.score.rows import rows, seen


@stage("mean_attention")
@dataclass(frozen=True, kw_only=True)
class MeanAttention:
    """The mean attention that a slot received from the queries that see it (``values``), and its
    standard deviation (part "deviation"); both of the mean over the query heads of a KV head. It
    runs on: queries of later passes count too.

    Source: RoCo (arXiv:2402.06262), section 4.
    """

    head_by_head: ClassVar[bool] = True

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Adds up this pass's attention, its squares, and how many queries saw each slot."""
        # in float64: the variance is a small difference of these
        zeros = torch.zeros(layer.pos.shape, dtype=torch.float64, device=layer.k.device)
        state = {
            "total": zeros,
            "squares": zeros.clone(),
            "count": seen(layer).sum(2).expand(layer.pos.shape).double(),
        }
        for _, paid in rows(layer):
            mean = paid.mean(2).double()
            state["total"] += mean.sum(2)
            state["squares"] += mean.square().sum(2)
        return {name: layer.state.get(name, 0) + new for name, new in state.items()}

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        count = layer.state["count"].clamp_min(1)
        mean = layer.state["total"] / count
        variance = layer.state["squares"] / count - mean.square()
        return Scores(mean.float(), parts={"deviation": variance.clamp_min(0.0).sqrt().float()})
