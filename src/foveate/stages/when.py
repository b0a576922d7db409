"""Rules for when a layer is compressed."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.errors import InvalidParameter
from foveate.policies.parameters import Count, Positive, Seed
from foveate.policies.protocols import Moment
from foveate.policies.spec import stage
from foveate.stages.score.attention_free import uniform

__all__ = ["AnswerBudget", "FixedSlot", "OverBudget"]


@stage("over_budget")
class OverBudget:
    """Compression after the prefill, and whenever heads store ``every`` pairs more than then.

    The budget stays that of the prompt, so the cache stops growing. With ``growing``, which needs a
    budget that is a share, it is that share of all tokens seen, including the answer's (the H2O and
    Local rows of Elastic Cache and PrefixKV).

    ``every=1`` is the papers' rule (H2O, CSP Algorithm 1). A larger number spreads the cost of
    compression over that many decoded tokens, where the new pair cannot take the slot of the
    evicted one. With ``reading`` the same applies between the passes of a prompt that is read in
    chunks (InfiniPot-V); without ``answering`` it does not apply while decoding.
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
class FixedSlot:
    """Compression of the prompt; while decoding, eviction of surplus pairs at a fixed distance.

    A head's surplus is what it stores beyond its share of the tokens seen (pairs kept / tokens of
    the prompt); it is evicted once it reaches ``every`` pairs.

    With ``counted_from`` "prompt", pairs are evicted from the slot that is ``distance`` before the
    end of the compressed prompt (half of it, if it is shorter), and later ones move up: the
    releases of Elastic Cache and PrefixKV. With "newest", the slot is ``distance`` before the
    newest pair, so that the answer's last tokens and the kept prompt stay complete: the papers'
    text.

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
        """Return the pairs that each head stores beyond its share of the tokens seen."""
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
        """Mark all slots but the surplus of each head."""
        surplus = self.surplus(moment)
        surplus = torch.where(surplus >= self.every, surplus, 0)
        if self.counted_from == "newest":
            first = (moment.stored - self.distance - surplus).clamp_min(0)
        else:
            near = moment.kept - self.distance
            first = torch.where(near < 1, moment.kept // 2, near)
        # heads are right-aligned: indices count from each head's own first pair, and are negative
        # in the empty slots before it
        index = torch.arange(slots, device=surplus.device) - (slots - moment.stored)[..., None]
        return ~((index >= first[..., None]) & (index < (first + surplus)[..., None]))


By = Literal["random", "age"]


@stage("answer_budget")
class AnswerBudget:
    """Separate budget of the answer: every head stores ``tokens`` pairs of it; the prompt stays.

    The policy's own budget is the prompt's, which is compressed at its end. Whenever a head stores
    ``every`` pairs more than that, it loses the surplus, so an answer of any length is decoded in
    bounded memory.

    The last ``recent`` tokens stay. Of the answer's others, pairs are evicted ``by`` "random", a
    uniform draw that follows from ``seed``, the head, the pair's slot and the tokens seen (layers
    of equal numbers lose the same pairs), or by "age", the oldest first. Nothing is scored.

    Ours, as a baseline: the prompt stays and the answer is evicted at random; by age it is
    StreamingLLM (arXiv:2309.17453) with the prompt as its sinks.
    """

    tokens: Positive
    by: By = "random"
    recent: Count = 32
    every: Positive = 1
    seed: Seed = 0
    decodes: bool = field(default=True, init=False)
    reads: bool = field(default=False, init=False)
    of_answer: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.recent >= self.tokens:
            raise InvalidParameter(
                f"recent={self.recent} leaves nothing of tokens={self.tokens} to choose from: give "
                f"fewer recent tokens than {self.tokens}."
            )

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt or bool((self.surplus(moment) >= self.every).any())

    def surplus(self, moment: Moment) -> Int[Tensor, "b h"]:
        """Return the pairs of the answer that each head stores beyond its budget."""
        return (moment.stored - moment.kept - self.tokens).clamp_min(0)

    def keeps(self, moment: Moment, slots: int) -> Bool[Tensor, "b h n"]:
        """Mark all slots but the surplus of each head."""
        surplus = self.surplus(moment)
        surplus = torch.where(surplus >= self.every, surplus, 0)
        index = torch.arange(slots, device=surplus.device) - (slots - moment.stored)[..., None]
        free = (index >= moment.kept[..., None]) & (index < moment.stored[..., None] - self.recent)
        order = index.double() if self.by == "age" else self._lots(moment, index)
        first = order.masked_fill(~free, torch.inf).argsort(dim=-1, stable=True)
        rank = first.argsort(dim=-1)  # of each slot in the order of eviction
        return rank >= surplus[..., None]

    def _lots(self, moment: Moment, index: Int[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
        heads = torch.arange(index.shape[1], device=index.device)[None, :, None]
        return uniform(self.seed, heads, index, moment.seen[:, None, None])
