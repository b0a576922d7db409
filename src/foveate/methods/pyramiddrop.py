"""PyramidDrop: a half of the visual tokens, then a quarter, then an eighth.

The paper drops visual tokens from the computation at the end of each of `stages` equal parts of the
layers while the prompt is read; it is no cache policy. This is what it leaves in the cache, read as
one: a part keeps text and `ratio` times the visual tokens of the part before it, chosen among those
by what the last query pays them in the part's first layer. So it saves memory and no prefill, and
what leaves the cache of a layer has been seen by the layers after it. `pyramiddrop.prune()` in
front of a method drops tokens as the paper does, and saves prefill.

The paper's shares fix what is kept; here they are scaled to the budget, which is exact over all
layers: a part's visual tokens are in proportion to the powers of `ratio`, at most all of them.
Where the first part cannot keep all, it chooses as the others do. Text that does not fit is ranked
by the same attention.
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
from foveate.stages.budget.exact import by_layer, proportional
from foveate.stages.recent import budget_of
from foveate.stages.score.one_ranking import by_position, of_slots, paid_by_last


@stage("rank_and_drop")
class RankAndDrop:
    """The order of tokens in a part of the layers: text first, then visual tokens that no earlier
    part has dropped, then the others as they were. Among equals it goes by what the last query pays
    them (part "importance"), on average over all heads, in the part's first layer, where its
    softmax is over what was not dropped. The values are places in that order.

    The note "counts", [b, layers], says how many tokens each layer is to keep; the others are by
    position: "order", "paid", and "alive" for what the part does not drop.

    Source: PyramidDrop (arXiv:2410.17247), section 3.2 and the release.
    """

    stages: Positive = 4
    ratio: ShareBetween = 0.5

    def queries(self, tokens: int) -> int:
        return 1

    def __call__(self, layer: Layer) -> Scores:
        parts = [place * self.stages // layer.depth for place in range(layer.depth)]
        mine = [place for place, part in enumerate(parts) if part == parts[layer.ordinal]]
        if layer.ordinal > mine[0]:
            notes = layer.earlier[mine[0]]
        else:
            notes = self._begun(layer, parts, last=mine[-1])
        importance = of_slots(layer, notes["paid"])
        return Scores(of_slots(layer, notes["order"]), {"importance": importance}, notes)

    def _begun(self, layer: Layer, parts: Sequence[int], last: int) -> dict[str, Tensor]:
        """The notes of a part, in its first layer."""
        before = layer.earlier[-1] if layer.ordinal else {}
        text = by_position(layer, (~layer.vision).float()) > 0
        held = by_position(layer, layer.valid.float()) > 0
        alive = held & before["alive"] if before else held
        paid = by_position(layer, paid_by_last(layer, of_slots(layer, alive) & layer.valid))
        order = _order(alive, text, torch.where(alive, paid, before.get("order", paid)))
        counts = before["counts"] if before else self._counts(layer, parts)
        count = (alive & text).sum(-1)
        seen = (counts[:, last] - count).clamp_min(0).minimum((alive & ~text).sum(-1))
        ranked = order.masked_fill(~alive | text, -torch.inf)[:, None]
        alive = alive & text | highest(ranked, seen[:, None])[:, 0] & alive & ~text
        return {"order": order, "paid": paid, "alive": alive, "counts": counts}

    def _counts(self, layer: Layer, parts: Sequence[int]) -> Int[Tensor, "b L"]:
        """Text, and of the visual tokens that the budget holds beside all text, a share by the
        part; the same for every layer where it does not hold the text.
        """
        weights = torch.tensor(
            [self.ratio**part for part in parts], dtype=torch.float64, device="cpu"
        )
        tokens = budget_of(layer.slots, 1)
        kinds = (~layer.vision & layer.valid, layer.vision & layer.valid)
        held = zip(*(kind.sum(-1).amax(-1).tolist() for kind in kinds), strict=True)
        rows = []
        for each, (text, visual) in zip(tokens.tolist(), held, strict=True):
            most = torch.full_like(weights, visual, dtype=torch.long)
            left = max(0, each - text) * len(parts)
            seen = proportional(weights, torch.zeros_like(most), most, left)
            rows.append(seen + text if each >= text else torch.full_like(most, each))
        return torch.stack(rows).to(layer.k.device)


def _order(
    alive: Bool[Tensor, "b t"], text: Bool[Tensor, "b t"], paid: Float[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """The higher, the earlier in the order; of equals the earlier token is first."""
    kind = alive.long() + (alive & text).long()
    by_paid = paid.argsort(dim=-1, descending=True, stable=True)
    by_kind = kind.gather(1, by_paid).argsort(dim=-1, descending=True, stable=True)
    place = by_paid.gather(1, by_kind).argsort(dim=-1)
    return (paid.shape[1] - place).float()


@stage("noted_counts")
class NotedCounts(AmountBudget):
    """Every layer keeps what its score notes as "counts", brought to the exact total."""

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
    """Keeps text, and ever fewer of the visual tokens that the last query attends to.

    ``stages`` are the parts of the layers, ``ratio`` the share of a part's visual tokens that the
    next one keeps.

    Args:
        stages: Parts that the layers are cut into.
        ratio: Share of a part's visual tokens that the next part keeps.

    Defaults:
        paper: four stages, half
    """
    return Policy(
        score=RankAndDrop(stages=stages, ratio=ratio),
        budget=NotedCounts(amount=budget),
        select=TopK(recent=recent, protect_text=protect_text),
    )
