"""Base class and selection that pruning methods share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.policies.amount import Amount, AmountLike
from foveate.policies.pruning import (
    EnteringTokens,
    Pruned,
    going_on,
    number_going_on,
    share,
    share_or_auto,
)
from foveate.stages.select import highest


def highest_visual(tokens: EnteringTokens, values: Float[Tensor, "b t"], keep: Amount) -> Pruned:
    """Keep a share of each row's visual tokens with the highest values; of equals the earlier."""
    ranked = values.masked_fill(~tokens.vision, -torch.inf)
    counts = going_on(keep, tokens.visual_tokens).minimum(tokens.vision.sum(-1))
    return Pruned(highest(ranked[:, None], counts[:, None])[:, 0] & tokens.vision)


@dataclass(frozen=True, kw_only=True)
class BeforeAllLayers:
    """Pruning before the first layer, which keeps the share ``keep`` of the visual tokens."""

    keep: AmountLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", share_or_auto(self.keep))

    def layers(self, depth: int) -> tuple[int, ...]:
        return (0,)

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        return (number_going_on(share(self.keep), sum(images)),)
