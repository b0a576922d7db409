"""SnapKV's score: attention that the observation window pays to the rest of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.core.errors import InvalidParameter
from foveate.core.layer import Layer, Scores
from foveate.core.spec import stage
from foveate.ops.window_attention import window_attention
from foveate.stages.score.groups import Reduction, over_group

Pool = Literal["avg", "max", "none"]


@stage("window_attention")
@dataclass(frozen=True, kw_only=True)
class WindowAttention:
    """Mean over the last ``window`` queries of the softmax in float32, reduced over the query heads
    of a KV head, then pooled along the slots before the window. The window itself scores zero:
    selections protect it.

    ``pool`` is "avg" (zero padding that counts, as in the release), "max" or "none", with an odd
    ``kernel``.

    Source: SnapKV (arXiv:2404.14469), section 4 and the release.
    """

    window: int = 32
    kernel: int = 5
    pool: Pool = "avg"
    group: Reduction = "mean"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidParameter(f"window={self.window}: the observation window needs a query.")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InvalidParameter(f"kernel={self.kernel} is not a positive odd number.")
        if self.pool not in ("avg", "max", "none"):
            raise InvalidParameter(f"pool={self.pool!r}: choose 'avg', 'max' or 'none'.")
        if self.group not in ("mean", "max"):
            raise InvalidParameter(f"group={self.group!r}: choose 'mean' or 'max'.")

    @property
    def queries(self) -> int:
        return self.window

    def __call__(self, layer: Layer) -> Scores:
        w = min(self.window, layer.q.shape[2])
        attention = window_attention(layer.q[:, :, -w:], layer.k, layer.visible(w), layer.scale)
        real = (layer.q_pos[:, -w:] >= 0).float()
        observed = (attention * real[:, None, None, :, None]).sum(3)
        observed = observed / real.sum(-1)[:, None, None, None]
        before = over_group(observed, self.group)[..., : -self.window]
        return Scores(F.pad(self.pooled(before), (0, layer.k.shape[2] - before.shape[-1])))

    def pooled(self, scores: Float[Tensor, "b h s"]) -> Float[Tensor, "b h s"]:
        """Pools along the slots, keeping their number."""
        if self.pool == "none" or scores.shape[-1] == 0:
            return scores
        pool = F.avg_pool1d if self.pool == "avg" else F.max_pool1d
        return pool(scores, self.kernel, stride=1, padding=self.kernel // 2)
