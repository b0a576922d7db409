"""Expected Attention: what queries yet to come will pay, from what queries look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.parameters import Factor, Positive
from foveate.core.spec import stage


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
