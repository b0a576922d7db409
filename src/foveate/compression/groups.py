"""Groups of layers that keep one set: where one layer attends to what another's indexer chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored


class GroupChoice(NamedTuple):
    """Slots that a selection chose, each head's number, and the scores."""

    mask: Bool[Tensor, "b h n"]
    counts: Int[Tensor, "b h"]
    scores: Float[Tensor, "b h n"]


class Groups:
    """Groups of layers, whose first layers choose for the others.

    ``leaders`` maps the other layers of each group to the first, by ordinal.
    """

    def __init__(self, leaders: Mapping[int, int]):
        self._leaders = leaders
        self._chosen: dict[int, GroupChoice] = {}

    def even(
        self, scored: Sequence[Scored], counts: Sequence[Int[Tensor, "b h"]]
    ) -> Sequence[Int[Tensor, "b h"]]:
        """Return the counts of layers that are compressed together, with the mean in each group."""
        firsts = [self._leaders.get(s.layer.ordinal, s.layer.ordinal) for s in scored]
        means = []
        for first, own in zip(firsts, counts, strict=True):
            group = [count for other, count in zip(firsts, counts, strict=True) if other == first]
            means.append(
                torch.stack([count.to(own.device) for count in group]).sum(0) // len(group)
            )
        return means

    def choice(self, layer: Layer, choose: Callable[[], GroupChoice]) -> GroupChoice:
        """Return the choice of a layer's group; the group's first layer makes it by ``choose``."""
        if (leader := self._leaders.get(layer.ordinal)) is not None:
            return GroupChoice(*(t.to(layer.k.device) for t in self._chosen[leader]))
        choice = choose()
        if layer.ordinal in self._leaders.values():
            self._chosen[layer.ordinal] = choice
        return choice
