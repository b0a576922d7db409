"""NACL's score: what the prompt's last tokens, its proxies, pay to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.parameters import Window
from foveate.core.spec import stage
from foveate.ops.window_attention import window_attention
from foveate.stages.recent import most_recent
from foveate.stages.score.groups import Reduction, over_group
from foveate.stages.score.window import window_of


@stage("proxy_attention")
@dataclass(frozen=True, kw_only=True)
class ProxyAttention:
    """Sum over the last ``proxies`` queries of their softmax over *all* tokens, later ones
    included, reduced over the query heads of a KV head. ``proxies`` is a number or a share of the
    budget.

    Source: NACL (arXiv:2408.03675), section 3.2.
    """

    head_by_head: ClassVar[bool] = True
    proxies: Window = 0.05
    group: Reduction = "mean"

    def queries(self, tokens: int) -> int:
        return most_recent(self.proxies, tokens)

    def __call__(self, layer: Layer) -> Scores:
        return Scores(over_group(self._sums(layer), self.group))

    def _sums(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        proxy = window_of(layer.slots, self.proxies)
        visible = layer.valid[:, :1, None] & proxy[:, None, :, None]
        return window_attention(
            layer.q[:, :, -proxy.shape[1] :], layer.k, visible, layer.scale
        ).sum(3)
