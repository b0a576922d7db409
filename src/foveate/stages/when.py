"""When a layer is compressed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.parameters import Positive
from foveate.core.protocols import Moment
from foveate.core.spec import stage

__all__ = ["FixedSlot", "OverBudget"]


@stage("over_budget")
@dataclass(frozen=True, kw_only=True)
class OverBudget:
    """After the prefill, and then whenever the heads hold ``every`` pairs more than they kept last.
    The budget stays what it was for the prompt, so the cache grows no further; a ``growing`` one,
    which has to be a share, is that share of all tokens seen, those of the answer included (the H2O
    and Local rows of Elastic Cache and PrefixKV).

    ``every=1`` is the papers' rule (H2O, CSP Algorithm 1); a larger number spreads the cost of
    compressing over that many decoded tokens, where the new pair cannot take the place of the one
    that leaves. With ``reading`` the same holds between the passes of
    a prompt that is read in chunks (InfiniPot-V); without ``answering`` not while decoding.
    """

    every: Positive = 1
    reading: bool = False
    answering: bool = True
    growing: bool = False

    @property
    def decodes(self) -> bool:
        return self.answering

    @property
    def reads(self) -> bool:
        return self.reading

    @property
    def one_by_one(self) -> bool:
        return self.answering and self.every == 1 and not self.growing

    @property
    def beyond(self) -> int:
        return self.every if self.answering and not self.growing else 0

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt or bool((moment.stored - moment.kept >= self.every).any())


From = Literal["prompt", "newest"]


@stage("fixed_slot")
@dataclass(frozen=True, kw_only=True)
class FixedSlot:
    """Compresses the prompt; then, whenever a head holds ``every`` pairs more than its share of the
    tokens seen (pairs kept / tokens of the prompt), takes the surplus out at a fixed distance.

    With ``counted_from`` "prompt", the pairs stand in the cache slot that is ``distance`` before
    the end of the compressed prompt (half of it, if it is shorter), and later ones move up: the
    releases of Elastic Cache and PrefixKV. With "newest" they are those that stand ``distance``
    before the newest pair, so that the answer's own last tokens stay and the kept prompt stays
    whole: the papers' words.

    Source: Elastic Cache (arXiv:2407.18121), section 3.3; PrefixKV (arXiv:2412.03409), section 3.1.
    """

    distance: Positive = 25
    counted_from: From = "prompt"
    every: Positive = 1
    decodes: bool = field(default=True, init=False)
    reads: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt or bool((self.surplus(moment) >= self.every).any())

    def surplus(self, moment: Moment) -> Int[Tensor, "b h"]:
        """Whole pairs that each head holds beyond its share of the tokens seen."""
        length = moment.length[:, None]
        # stored - seen * kept / length, rounded down
        share = moment.seen[:, None] * moment.kept  # times the prompt's length, to stay in integers
        return ((moment.stored * length - share) // length).clamp_min(0)

    def leave(self, stored: int, seen: int, length: int, kept: int) -> range:
        surplus = max(0, (stored * length - seen * kept) // length)
        surplus = surplus if surplus >= self.every else 0
        if self.counted_from == "newest":
            first = max(0, stored - self.distance - surplus)
        else:
            first = kept // 2 if kept - self.distance < 1 else kept - self.distance
        return range(first, first + surplus)

    def keeps(self, moment: Moment, slots: int) -> Bool[Tensor, "b h n"]:
        """All but the surplus of each head."""
        surplus = self.surplus(moment)
        surplus = torch.where(surplus >= self.every, surplus, 0)
        if self.counted_from == "newest":
            first = (moment.stored - self.distance - surplus).clamp_min(0)
        else:
            near = moment.kept - self.distance
            first = torch.where(near < 1, moment.kept // 2, near)
        # heads are right-aligned: places are counted from each one's own first pair, and are
        # negative in the empty slots before it
        index = torch.arange(slots, device=surplus.device) - (slots - moment.stored)[..., None]
        return ~((index >= first[..., None]) & (index < (first + surplus)[..., None]))
