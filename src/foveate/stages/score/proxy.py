"""NACL's score: what the prompt's last tokens, its proxies, pay to all others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foveate.core.errors import InvalidParameter
from foveate.core.layer import Layer, Scores
from foveate.core.spec import stage
from foveate.ops.window_attention import window_attention
from foveate.stages.recent import Recent, budget_of, check_recent, most_recent, recent_tokens
from foveate.stages.score.groups import Reduction, over_group


@stage("proxy_attention")
@dataclass(frozen=True, kw_only=True)
class ProxyAttention:
    """Sum over the last ``proxies`` queries of their softmax over *all* tokens, later ones
    included, reduced over the query heads of a KV head. ``proxies`` is a number or a share of the
    budget.

    Source: NACL (arXiv:2408.03675), section 3.2.
    """

    proxies: Recent = 0.05
    group: Reduction = "mean"

    def __post_init__(self) -> None:
        check_recent("proxies", self.proxies, least=1)
        if self.group not in ("mean", "max"):
            raise InvalidParameter(f"group={self.group!r}: choose 'mean' or 'max'.")

    def queries(self, tokens: int) -> int:
        return most_recent(self.proxies, tokens)

    def __call__(self, layer: Layer) -> Scores:
        return Scores(over_group(self._sums(layer), self.group))

    def _sums(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        wanted = recent_tokens(self.proxies, budget_of(layer, self.proxies)).clamp_min(1)
        w = min(int(wanted.max()), layer.q.shape[2])
        proxy = layer.q_pos[:, -w:] >= (layer.lengths - wanted).clamp_min(0)[:, None]
        visible = layer.valid[:, :1, None] & proxy[:, None, :, None]
        return window_attention(layer.q[:, :, -w:], layer.k, visible, layer.scale).sum(3)
