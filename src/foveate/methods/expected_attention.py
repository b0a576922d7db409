"""Expected Attention: what queries yet to come will attend to, from what queries look like.

Departs from the authors' code: the statistics are those of the prompt's last queries as they are,
with their rotary positions, where the release takes them before the rotation and turns them to the
mean of the next 512 positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scores
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Factor, Positive
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


@stage("expected_attention")
@dataclass(frozen=True, kw_only=True)
class ExpectedAttention:
    """The expectation of exp(logit) over queries that are normally distributed, with the mean and
    (``covariance``) the covariance of the last ``window`` queries, normalised over the slots,
    averaged over the query heads of a KV head, plus ``epsilon``, times the value's norm.

    Source: Expected Attention (arXiv:2510.00636), section 3.
    """

    head_by_head: ClassVar[bool] = True
    window: Positive = 256
    covariance: bool = True
    epsilon: Factor = 0.0
    value_norm: bool = True

    def queries(self, tokens: int) -> int:
        return self.window

    def __call__(self, layer: Layer) -> Scores:
        logits = self._expected(layer)
        logits = logits.masked_fill(~layer.valid[:, :, None], -torch.inf)
        scores = logits.softmax(-1).mean(2) + self.epsilon
        return Scores(scores * layer.v.float().norm(dim=-1) if self.value_norm else scores)

    def _expected(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        """The logarithm of E exp(scale q k): scale mean k + scale^2 / 2 k covariance k."""
        b, hq, m, d = layer.q.shape
        w, h = min(self.window, m), layer.k.shape[1]
        real = (layer.q_pos[:, -w:] >= 0).float()[:, None, None, :, None]
        q = layer.q[:, :, -w:].float().view(b, h, hq // h, w, d)
        count = real.sum(3).clamp_min(1)
        mean = (q * real).sum(3) / count
        k = layer.k.float()
        logits = layer.scale * (mean @ k.transpose(2, 3))
        if not self.covariance:
            return logits
        off = (q - mean[:, :, :, None]) * real
        spread = off.transpose(3, 4) @ off / count[..., None]
        quadratic = ((k[:, :, None] @ spread) * k[:, :, None]).sum(-1)
        return logits + 0.5 * layer.scale**2 * quadratic


@method(
    Paper(
        title="Expected Attention: KV Cache Compression by Estimating Attention from Future "
        "Queries Distribution",
        authors=("Devoto, Alessio", "Jeblick, Maximilian", "J{\\'e}gou, Simon"),
        year=2025,
        venue="arXiv",
        key="devoto2025expected",
        arxiv="2510.00636",
        code="https://github.com/NVIDIA/kvpress",
    ),
)
def expected_attention(
    *,
    budget: Amount,
    window: Positive = 256,
    covariance: bool = True,
    epsilon: Factor = 0.0,
    sinks: Count = 4,
) -> Policy:
    """Keeps what queries like the last ones are expected to attend to, times the value's norm."""
    return Policy(
        score=ExpectedAttention(window=window, covariance=covariance, epsilon=epsilon),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks),
    )
