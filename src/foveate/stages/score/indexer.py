"""Votes of the indexer of sparse attention, which chooses what each query attends to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidInput
from foveate.policies.spec import stage
from foveate.stages.score.bases import WithoutQueries


@stage("indexer", reads_indexer=True)
class IndexerVotes(WithoutQueries):
    """Number of queries for which the model's indexer chose the token.

    Read from the mask of sparse attention, so it needs no products. Queries that see no more tokens
    than the indexer chooses have no choice, and do not vote.
    """

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Add the votes of this pass's queries."""
        return {"votes": layer.state.get("votes", 0) + _votes(layer)}

    def __call__(self, layer: Layer) -> Scores:
        votes = layer.state["votes"]
        silent = (votes == 0).all(-1).all(-1)
        if bool(silent.any()):
            row = int(silent.nonzero()[0, 0])
            raise InvalidInput(
                f"row {row} of layer {layer.number} has {int(layer.lengths[row])} tokens, and the "
                "model's indexer chose all of them (index_topk), so it voted for none. Leave "
                "score=indexer out for short prompts."
            )
        return Scores(votes)


def _votes(layer: Layer) -> Float[Tensor, "b h n"]:
    """Count the queries of a pass that attend to each slot and had to choose."""
    pos, q_pos, mask = layer.pos[:, :1], layer.q_pos, layer.slots.mask
    if mask is None:
        return torch.zeros_like(layer.pos, dtype=torch.float32)
    earlier = (pos >= 0)[:, :, None] & (pos[:, :, None] <= q_pos[:, None, :, None])
    chose = (q_pos >= 0)[:, None] & (mask.sum(-1) < earlier.sum(-1))
    return (mask & chose[..., None]).sum(2).float().expand_as(layer.pos)
