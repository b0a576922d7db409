"""What two lists both name is held twice, as CSP's release does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.core.parameters import Share
from foveate.core.spec import stage
from foveate.stages.select.lists import beyond_lists


@stage("doubles")
@dataclass(frozen=True, kw_only=True)
class Doubles:
    """The lists joined (CSP's release): a pair on both is held twice, so its weight is doubled.

    The second copy stands in the slot of a token that is on neither list, which the union had
    filled up with: as many as both lists name. Such a slot still bears that token's position.

    Source: CSP (arXiv:2412.04652), the authors' code.
    """

    cross_ratio: Share = 0.5

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        source = self._source(scored, kept)[..., None]
        k, v = scored.layer.k, scored.layer.v
        return k.gather(2, source.expand_as(k)), v.gather(2, source.expand_as(v))

    def _source(self, scored: Scored, kept: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
        """The slot whose pair each slot holds: its own, but for the copies."""
        beyond = beyond_lists("merge doubles", scored, kept.sum(-1), self.cross_ratio)
        own, other = (places < 0 for places in beyond)
        free = scored.scores.values.isfinite()
        double, filling = kept & own & other, kept & free & ~own & ~other
        place = filling.cumsum(-1) - 1  # the first of the doubles goes to the first such slot
        copies = filling & (place < double.sum(-1, keepdim=True))
        order = (~double).to(torch.uint8).argsort(dim=-1, stable=True)
        here = torch.arange(kept.shape[-1], device=kept.device).expand_as(order)
        return torch.where(copies, order.gather(2, place.clamp_min(0)), here)
