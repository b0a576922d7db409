"""PyramidDrop: half of the visual tokens, then a quarter, then an eighth.

The paper drops visual tokens from the computation at the end of each of `stages` equal parts of the
layers during the prefill; it is no cache policy. Here the cache that this leaves is the policy: a
part keeps text and `ratio` times the visual tokens of the part before it, chosen among those by the
attention of the last query in the part's first layer. It saves memory but no prefill, and later
layers have seen the tokens that leave a layer's cache. `pyramiddrop.prune()` in front of a method
drops tokens before they are computed, as the paper does.

The paper's shares fix the number of kept tokens; here they are scaled to the budget, which is exact
over all layers: a part's visual tokens are in proportion to the powers of `ratio`, at most all of
them. Where the first part cannot keep all, it chooses as the others do. Text that does not fit is
ranked by the same attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Recent, ShareBetween
from foveate.policies.protocols import Scope
from foveate.stages import TopK, highest
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact_totals import by_layer, proportional
from foveate.stages.recent import budget_of
from foveate.stages.score.by_position import by_position, of_slots, paid_by_last


@stage("rank_and_drop")
class RankAndDrop:
    """Order of tokens in a part of the layers: text, then surviving visual tokens, then all others.

    Surviving visual tokens are those that no earlier part has dropped; dropped tokens keep their
    order. Within text and within surviving visual tokens the order follows the attention of the
    last query (part "importance"), averaged over all heads, in the part's first layer, where its
    softmax is over the surviving tokens. The values are ranks in that order.

    The note "counts", [b, layers], is the number of tokens of each layer. The other notes are by
    position: "order", "paid", and "alive" for the tokens that the part does not drop.

    Source: PyramidDrop (arXiv:2410.17247), section 3.2 and the release.
    """

    stages: Positive = 4
    ratio: ShareBetween = 0.5

    def queries(self, tokens: int) -> int:
        return 1

    def __call__(self, layer: Layer) -> Scores:
        parts = [index * self.stages // layer.depth for index in range(layer.depth)]
        layers_of_part = [index for index, part in enumerate(parts) if part == parts[layer.ordinal]]
        if layer.ordinal > layers_of_part[0]:
            notes = layer.earlier[layers_of_part[0]]
        else:
            notes = self._notes_of_part(layer, parts, last=layers_of_part[-1])
        importance = of_slots(layer, notes["paid"])
        return Scores(of_slots(layer, notes["order"]), {"importance": importance}, notes)

    def _notes_of_part(self, layer: Layer, parts: Sequence[int], last: int) -> dict[str, Tensor]:
        """Compute the notes of a part, in its first layer."""
        before = layer.earlier[-1] if layer.ordinal else {}
        text = by_position(layer, (~layer.vision).float()) > 0
        stored = by_position(layer, layer.valid.float()) > 0
        alive = stored & before["alive"] if before else stored
        paid = by_position(layer, paid_by_last(layer, of_slots(layer, alive) & layer.valid))
        order = _order(alive, text, torch.where(alive, paid, before.get("order", paid)))
        counts = before["counts"] if before else self._counts(layer, parts)
        count = (alive & text).sum(-1)
        visual_count = (counts[:, last] - count).clamp_min(0).minimum((alive & ~text).sum(-1))
        ranked = order.masked_fill(~alive | text, -torch.inf)[:, None]
        alive = alive & text | highest(ranked, visual_count[:, None])[:, 0] & alive & ~text
        return {"order": order, "paid": paid, "alive": alive, "counts": counts}

    def _counts(self, layer: Layer, parts: Sequence[int]) -> Int[Tensor, "b L"]:
        """Return each layer's tokens: all text, and a share of the visual tokens by the part.

        The visual tokens shared out are those that the budget holds beside all text. Where it does
        not hold the text, every layer has the same number.
        """
        weights = torch.tensor(
            [self.ratio**part for part in parts], dtype=torch.float64, device="cpu"
        )
        tokens = budget_of(layer.slots, 1)
        kinds = (~layer.vision & layer.valid, layer.vision & layer.valid)
        kind_counts = zip(*(kind.sum(-1).amax(-1).tolist() for kind in kinds), strict=True)
        rows = []
        for row_tokens, (text, visual) in zip(tokens.tolist(), kind_counts, strict=True):
            available = torch.full_like(weights, visual, dtype=torch.long)
            left = max(0, row_tokens - text) * len(parts)
            visual_counts = proportional(weights, torch.zeros_like(available), available, left)
            rows.append(
                visual_counts + text
                if row_tokens >= text
                else torch.full_like(available, row_tokens)
            )
        return torch.stack(rows).to(layer.k.device)


def _order(
    alive: Bool[Tensor, "b t"], text: Bool[Tensor, "b t"], paid: Float[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """Return ranks, higher for tokens that come first; of equals the earlier token is first."""
    kind = alive.long() + (alive & text).long()
    by_paid = paid.argsort(dim=-1, descending=True, stable=True)
    by_kind = kind.gather(1, by_paid).argsort(dim=-1, descending=True, stable=True)
    rank = by_paid.gather(1, by_kind).argsort(dim=-1)
    return (paid.shape[1] - rank).float()


@stage("noted_counts")
class NotedCounts(AmountBudget):
    """Budget that keeps the note "counts" of its score, adjusted to the exact total."""

    scope: Scope = field(default="model", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        counts = scored[0].scores.notes.get("counts")
        if counts is None or counts.shape[1] != len(scored):
            raise InvalidParameter(
                "the budget noted_counts needs a score that notes the counts of all layers, such "
                "as rank_and_drop()."
            )
        return by_layer(scored, counts.cpu(), tokens)


@method("xing2025pyramiddrop", adds=("score", "budget"))
def pyramiddrop(
    *,
    budget: Amount,
    stages: Positive = 4,
    ratio: ShareBetween = 0.5,
    recent: Recent = 1,
    protect_text: bool = False,
) -> Policy:
    """Text, and visual tokens that the last query attends to, fewer in each part of the layers.

    ``stages`` is the number of parts of the layers, ``ratio`` the share of a part's visual tokens
    that the next one keeps (section 3.2).

    Args:
        stages: Number of parts that the layers are cut into.
        ratio: Share of a part's visual tokens that the next part keeps.

    Defaults:
        paper: four stages, half
    """
    return Policy(
        score=RankAndDrop(stages=stages, ratio=ratio),
        budget=NotedCounts(amount=budget),
        select=TopK(recent=recent, protect_text=protect_text),
    )
