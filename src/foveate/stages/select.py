"""Selections: the slots that are kept beside the protected ones."""

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
    """Selection that protects the last ``recent`` tokens: a number, or a share of the budget."""

    recent: Recent = 0.5

    @property
    def protects(self) -> int:
        return holding(0, self.recent)

    @property
    def by_position(self) -> bool:
        """True unless a subclass protects in another way."""
        return type(self).protect in (KeepsRecent.protect, KeepsEnds.protect)

    def always(self, tokens: int) -> int:
        return int(
            recent_tokens(self.recent, torch.tensor([tokens], dtype=torch.long, device="cpu"))
        )

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        return is_recent(slots, self.recent)


@dataclass(frozen=True, kw_only=True)
class KeepsEnds(KeepsRecent):
    """Selection that also protects the first ``sinks`` tokens."""

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
    """Selection of the highest scores, beside the first ``sinks`` and the last ``recent`` tokens.

    With ``protect_text`` every text token is protected, too. ``recent`` is a number of tokens (int)
    or a share of the budget (float in [0, 1)). All protected tokens count inside the budget. Of
    equal scores the earlier token wins. With N + M as the budget and M as ``recent`` it is LOOK-M
    eqs. 6 to 8.
    """

    protect_text: bool = False

    @property
    def drops_lowest(self) -> bool:
        """False where a subclass selects in another way, or text is protected."""
        return type(self).__call__ is TopK.__call__ and self.by_position

    @property
    def by_position(self) -> bool:
        """False where text is protected, wherever it is."""
        return type(self).protect is TopK.protect and not self.protect_text

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        marked = super().protect(slots)
        return marked | ~slots.vision if self.protect_text else marked

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        return highest(scored.scores.values, counts)


def highest(scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
    """Mark the ``counts`` highest scores of each row and head; of equal ones the earlier."""
    last = lowest_kept(scores, counts)
    marked = scores >= last
    if torch.equal(marked_count := marked.sum(-1), counts):
        return marked  # no other slot has the lowest kept score
    # of the slots that tie at the lowest kept score, the latest are dropped until counts match
    surplus, ties = marked_count - counts, scores == last
    rank = ties.cumsum(-1)
    return marked ^ (ties & (rank > rank[..., -1:] - surplus[..., None]))


def lowest_kept(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """Return the lowest of the ``counts`` highest scores of each row and head (0: the highest)."""
    return (by_partition if scores.device.type == "cpu" else by_top_k)(scores, counts)


def by_top_k(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """Find the lowest kept scores on a GPU: one topk for all heads, of the largest count."""
    ranked = scores.topk(max(1, int(counts.max())), dim=-1).values
    return ranked.gather(-1, (counts - 1).clamp_min(0)[..., None])


def by_partition(
    scores: Shaped[Tensor, "b h n"], counts: Int[Tensor, "b h"]
) -> Shaped[Tensor, "b h 1"]:
    """Find the lowest kept scores on a CPU, without sorting, in half of topk's time or less."""
    rows = scores.detach().flatten(0, 1).numpy().copy()  # partition() works in place
    offsets = [-max(1, count) for count in counts.flatten().tolist()]
    if len(set(offsets)) == 1:
        rows.partition(offsets[0])
        lowest = rows[:, offsets[0]]
    else:
        for row, offset in zip(rows, offsets, strict=True):
            row.partition(offset)
        lowest = rows[range(len(rows)), offsets]
    return torch.from_numpy(lowest).view(*counts.shape, 1)
