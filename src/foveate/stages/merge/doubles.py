"""What two lists both name is held twice, as CSP's release does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.errors import InvalidParameter
from foveate.core.layer import Scored
from foveate.core.spec import stage
from foveate.stages.select.lists import places, share


@stage("doubles")
@dataclass(frozen=True, kw_only=True)
class Doubles:
    """The lists joined (CSP's release): a pair on both is held twice, so its weight is doubled.

    The second copy stands in the slot of a token that is on neither list, which the union had
    filled up with: as many as both lists name. Such a slot still bears that token's position.

    Source: CSP (arXiv:2412.04652), the authors' code.
    """

    cross_ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.cross_ratio <= 1:
            raise InvalidParameter(f"cross_ratio={self.cross_ratio}: give a share in [0, 1].")

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        source = self._source(scored, kept)[..., None]
        k, v = scored.layer.k, scored.layer.v
        return k.gather(2, source.expand_as(k)), v.gather(2, source.expand_as(v))

    def _source(self, scored: Scored, kept: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
        """The slot whose pair each slot holds: its own, but for the copies."""
        parts, values = scored.scores.parts, scored.scores.values
        if not {"self", "cross"} <= parts.keys():
            raise InvalidParameter(
                "the merge doubles compares self and cross lists, and this score has none. Use it "
                "with score=cross_self_attention, alone or inside head_mean."
            )
        free, n = values.isfinite(), values.shape[-1]
        k = kept.sum(-1) - (values == torch.inf).sum(-1)
        cross = share(k, self.cross_ratio)
        own = places(parts["self"], free, n) < (k - cross)[..., None]
        other = places(parts["cross"], free, n) < cross[..., None]
        double, filling = kept & own & other, kept & free & ~own & ~other
        place = filling.cumsum(-1) - 1  # the first of the doubles goes to the first such slot
        copies = filling & (place < double.sum(-1, keepdim=True))
        order = (~double).to(torch.uint8).argsort(dim=-1, stable=True)
        here = torch.arange(n, device=kept.device).expand_as(order)
        return torch.where(copies, order.gather(2, place.clamp_min(0)), here)
