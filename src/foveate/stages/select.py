"""Selections: which slots are kept, beside those that always are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.cache.slots import Slots
from foveate.policies.parameters import Count, Recent
from foveate.policies.spec import stage
from foveate.stages.recent import holding, is_recent, recent_tokens

__all__ = ["TopK"]


@dataclass(frozen=True, kw_only=True)
class KeepsRecent:
    """Protects the last ``recent`` tokens: a number of them, or a share of the budget."""

    recent: Recent = 0.5

    @property
    def protects(self) -> int:
        return holding(0, self.recent)

    @property
    def by_position(self) -> bool:
        """Not where a subclass protects in another way."""
        return type(self).protect in (KeepsRecent.protect, KeepsEnds.protect)

    def always(self, tokens: int) -> int:
        return int(
            recent_tokens(self.recent, torch.tensor([tokens], dtype=torch.long, device="cpu"))
        )

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        return is_recent(slots, self.recent)


@dataclass(frozen=True, kw_only=True)
class KeepsEnds(KeepsRecent):
    """Protects the first ``sinks`` tokens, too."""

    recent: Recent = 0
    sinks: Count = 0

    @property
    def protects(self) -> int:
        return holding(self.sinks, self.recent)

    def always(self, tokens: int) -> int:
        return self.sinks + super().always(tokens)

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        last = super().protect(slots)
        if not self.sinks:
            return last
        return last | slots.where(lambda pos: (pos >= 0) & (pos < self.sinks))


@stage("top_k", head_by_head=True)
class TopK(KeepsEnds):
    """The first ``sinks`` tokens, the last ``recent`` tokens, with ``protect_text`` every text
    token, and the highest scores of the rest.

    ``recent`` is a number of tokens (int) or a share of the budget (float in [0, 1)). All count
    inside the budget. Of equal scores the earlier token wins. With N + M as the budget and M as
    ``recent`` it is LOOK-M eqs. 6 to 8.
    """

    protect_text: bool = False

    @property
    def drops_lowest(self) -> bool:
        """Not where a subclass selects in another way, or text is protected."""
        return type(self).__call__ is TopK.__call__ and self.by_position

    @property
    def by_position(self) -> bool:
        """Not where text is protected, wherever it stands."""
        return type(self).protect is TopK.protect and not self.protect_text

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        marked = super().protect(slots)
        return marked | ~slots.vision if self.protect_text else marked

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        return highest(scored.scores.values, counts)


def highest(scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
    """Marks the ``counts`` highest scores of each row and head; of equal ones the earlier."""
    last = lowest_kept(scores, counts)
    marked = scores >= last
    if torch.equal(held := marked.sum(-1), counts):
        return marked  # nothing else has the last one's score
    # of those that tie for the last place, the latest go: as many as are too many
    surplus, ties = held - counts, scores == last
    rank = ties.cumsum(-1)
    return marked ^ (ties & (rank > rank[..., -1:] - surplus[..., None]))


def lowest_kept(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """The lowest of the ``counts`` highest scores of each row and head; the highest for none."""
    return (by_partition if scores.device.type == "cpu" else by_top_k)(scores, counts)


def by_top_k(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """On a GPU: all heads at once, as many of each as of the one that keeps most."""
    ranked = scores.topk(max(1, int(counts.max())), dim=-1).values
    return ranked.gather(-1, (counts - 1).clamp_min(0)[..., None])


def by_partition(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """On a CPU, where it takes half of topk's time or less: nothing is sorted."""
    rows = scores.detach().flatten(0, 1).numpy().copy()  # partition() works in place
    places = [-max(1, count) for count in counts.flatten().tolist()]
    if len(set(places)) == 1:
        rows.partition(places[0])
        lowest = rows[:, places[0]]
    else:
        for row, place in zip(rows, places, strict=True):
            row.partition(place)
        lowest = rows[range(len(rows)), places]
    return torch.from_numpy(lowest).view(*counts.shape, 1)
