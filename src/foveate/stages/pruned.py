"""What ways to prune have in common."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.policies.amount import Amount
from foveate.policies.pruning import EnteringTokens, Pruned, going_on
from foveate.stages.select import highest


def highest_visual(tokens: EnteringTokens, values: Float[Tensor, "b t"], keep: Amount) -> Pruned:
    """The share of the row's visual tokens that has the highest values; of equals the earlier."""
    ranked = values.masked_fill(~tokens.vision, -torch.inf)
    counts = going_on(keep, tokens.given).minimum(tokens.vision.sum(-1))
    return Pruned(highest(ranked[:, None], counts[:, None])[:, 0] & tokens.vision)
