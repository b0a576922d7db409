"""PrefixKV's search with its cost: the spread of the ratios and the halvings per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.compression.pipeline import observed, score
from foveate.compression.tensors import QKV, layers_of
from foveate.errors import InvalidBudget
from foveate.methods.prefixkv import STEPS, PrefixBudget, prefixkv
from foveate.policies.amount import Amount, AmountLike
from foveate.policies.policy import Policy


class Searched(NamedTuple):
    """Result of the search, row by row.

    The share p, the halvings that found it, and each layer's budget, scaled to the total, in tokens
    and as a share of the prompt.
    """

    p: Float[Tensor, "b"]
    steps: Int[Tensor, "b"]
    tokens: Int[Tensor, "b L"]
    ratios: Float[Tensor, "b L"]


def prefix_search(
    layers: Sequence[QKV],
    budget: AmountLike,
    attention_mask: Tensor | None = None,
    *,
    delta: float = 0.0,
    steps: int = STEPS,
) -> Searched:
    """Search each row's ratios by PrefixKV section 3.3, Algorithm 1. The deviation of ``ratios``
    over samples, and their distance to a profile, are Table 7; the mean of ``steps`` is Table 10.

    Args:
        layers: the prompt.
        budget: as of ``foveate.prefixkv``: the average share, or number, of tokens a layer.
        attention_mask: 1 at tokens and 0 at padding.
        delta: how far the layers' ratios, added up, may be from the budget's.
        steps: the most halvings.

    Raises:
        InvalidInput: shapes that do not fit together, or padding that is not on the left.
        InvalidBudget: a budget that is neither a share nor a number of tokens.
    """
    if (amount := Amount.of(budget)).kind not in ("fraction", "tokens"):
        raise InvalidBudget(f"budget {amount}: give a share (20%) or a number of tokens.")
    policy: Policy = prefixkv(budget=budget, delta=delta, steps=steps)
    stage = PrefixBudget(amount=budget, delta=delta, steps=steps)
    scored = _scored(policy, layers, attention_mask)
    tokens = scored[0].tokens
    searches = [stage.found(scored, row, int(t) * len(scored)) for row, t in enumerate(tokens)]
    kept = torch.stack([counts[:, 0].cpu() for counts in stage(scored, tokens)], dim=1)
    return Searched(
        p=torch.tensor([search.p for search in searches], dtype=torch.float64, device="cpu"),
        steps=torch.tensor([search.steps for search in searches], dtype=torch.long, device="cpu"),
        tokens=kept,
        ratios=kept.double() / scored[0].layer.lengths.cpu()[:, None],
    )


def _scored(policy: Policy, layers: Sequence[QKV], attention_mask: Tensor | None) -> list[Scored]:
    """Score every layer, even if the prompt fits its budget."""
    scored = []
    for layer in layers_of(layers, None, attention_mask):
        tokens = policy.tokens(layer.lengths, 0).minimum(layer.lengths)
        layer = replace(layer, slots=layer.slots.with_budget(tokens))
        result = score(policy, replace(layer, state=observed(policy, layer)), recompressed=True)
        scored += [] if result is None else [result]
    return scored
