"""CSP, Cross-Self Pruning: what a modality needs of itself, and what of the other.

Attention within a modality and across modalities live on different scales, so one ranking starves
one of them. The window's attention is split by whether query and key are of the same modality
(eq. 1), each half makes a list (eq. 2), and the kept tokens are drawn from both (eq. 3). A softmax
over fewer keys is sharper than it was; softmax-n (eq. 7) takes that back.

Departs from the paper in: scores stay per KV head (the paper averages heads, `head_mean=True`), and
eq. 3, the intersection of the lists, which is empty whenever the window holds text alone: the two
lists see different keys then. The default is the lists' union, both growing until it fills the
budget; `combine="and"` lets their intersection grow to it instead. Eqs. 11 and 12 lack a factor
(the divergence is an expectation under weights that add up to less than one), so nothing says that
softmax-n is always closer to the full cache: measure it.

Departs from the authors' code, which joins the lists and stores what stands in both twice: that
spends budget on doubling one weight (`combine="concat"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scored, Scores, WindowWeights
from foveate.core.method import Paper, method
from foveate.core.parameters import Factor, Share, Window
from foveate.core.policy import Policy
from foveate.core.protocols import NoMerge, Softmax
from foveate.core.slots import Slots
from foveate.core.spec import stage
from foveate.errors import InvalidParameter
from foveate.stages.budget import Uniform
from foveate.stages.recent import most_recent, part
from foveate.stages.score import HeadMean
from foveate.stages.score.rows import Reduction
from foveate.stages.score.window import by_modality, paid_by_modality
from foveate.stages.select import KeepsRecent, highest

Combine = Literal["union", "and", "concat"]


@stage("cross_self_attention")
@dataclass(frozen=True, kw_only=True)
class CrossSelfAttention:
    """Eq. 1: the window's softmax-n, summed over queries of the key's own modality (part "self")
    and over those of the other (part "cross"), reduced over the query heads of a KV head.
    """

    head_by_head: ClassVar[bool] = True
    window: Window = 0.5
    n: Factor = 1.0
    group: Reduction = "mean"

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights:
        return by_modality(slots, self.window, self.n, groups, self.group)

    def __call__(self, layer: Layer) -> Scores:
        by_text, by_vision = paid_by_modality(layer, self.window, self.n, self.group).unbind(2)
        own = torch.where(layer.vision, by_vision, by_text)
        cross = torch.where(layer.vision, by_text, by_vision)
        return Scores(own + cross, parts={"self": own, "cross": cross})


def beyond_lists(
    who: str, scored: Scored, counts: Int[Tensor, "b h"], cross_ratio: float
) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
    """Eq. 2: how many places each slot stands behind the end of the list by the part "self", and
    of that by "cross"; negative: it is on the list. What can be in no list is n places behind or
    more.

    The lists share what ``counts`` leave beside the protected slots: ``cross_ratio`` of it, as
    written (0.29 of 100 is 29) and rounded down, is the length of the second.

    Raises:
        InvalidParameter: a score without these parts; ``who`` asked for them.
    """
    parts, values = scored.scores.parts, scored.scores.values
    if not {"self", "cross"} <= parts.keys():
        raise InvalidParameter(
            f"the {who} draws on self and cross scores, and this score has "
            "none. Use it with score=cross_self_attention, alone or inside head_mean."
        )
    free = values.isfinite()
    k = counts - (values == torch.inf).sum(-1)
    cross = part(k, cross_ratio)
    return (
        _places(parts["self"], free) - (k - cross)[..., None],
        _places(parts["cross"], free) - cross[..., None],
    )


def _places(scores: Float[Tensor, "b h n"], free: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """Each slot's place in the order of the highest scores, from 0; of equal ones the earlier is
    first. What is not ``free`` or scores zero is in no list: 2 n, past the end of any.
    """
    listed = free & (scores > 0)
    order = scores.masked_fill(~listed, -1.0).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).masked_fill(~listed, 2 * scores.shape[-1])


@stage("cross_self")
@dataclass(frozen=True, kw_only=True)
class CrossSelf(KeepsRecent):
    """Eqs. 2 and 3: K^c of the places beside the recent tokens go to the best of the part "cross",
    K^s to the best of "self". Both lists then grow, a place at a time, until their union (or their
    intersection, "and") fills the budget. A token enters no list in which it scores zero.
    """

    head_by_head: ClassVar[bool] = True
    cross_ratio: Share = 0.5
    combine: Literal["union", "and"] = "union"

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values = scored.scores.values
        free, protected = values.isfinite(), values == torch.inf
        growth = torch.stack(beyond_lists("selection cross_self", scored, counts, self.cross_ratio))
        late = 2 * values.shape[-1]  # what is in no list is at least half as far behind
        first, second = growth.amin(0), growth.amax(0)
        on_both = torch.where(second < late // 2, second, late + first)
        order = first if self.combine == "union" else on_both
        ranks = (-order).float().masked_fill(~free, -torch.inf)
        return protected | highest(ranks, counts - protected.sum(-1))


@stage("softmax_n")
@dataclass(frozen=True, kw_only=True)
class SoftmaxN:
    """exp(x_i) / (n + sum_j exp(x_j)) in the attention over a compressed layer, for any n >= 0.

    The same as one more pair, with the logit log n and a value of zeros.

    Source: CSP (arXiv:2412.04652), eq. 7.
    """

    n: Factor = 1.0


@stage("doubles")
@dataclass(frozen=True, kw_only=True)
class Doubles:
    """The lists joined (CSP's release): a pair on both is held twice, so its weight is doubled.

    The second copy stands in the slot of a token that is on neither list, which the union had
    filled up with: as many as both lists name. Such a slot still bears that token's position.

    Source: CSP (arXiv:2412.04652), the authors' code.
    """

    cross_ratio: Share = 0.5

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        source = self._source(scored, kept)[..., None]
        k, v = scored.layer.k, scored.layer.v
        return k.gather(2, source.expand_as(k)), v.gather(2, source.expand_as(v))

    def _source(self, scored: Scored, kept: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
        """The slot whose pair each slot holds: its own, but for the copies."""
        beyond = beyond_lists("merge doubles", scored, kept.sum(-1), self.cross_ratio)
        own, other = (places < 0 for places in beyond)
        free = scored.scores.values.isfinite()
        double, filling = kept & own & other, kept & free & ~own & ~other
        place = filling.cumsum(-1) - 1  # the first of the doubles goes to the first such slot
        copies = filling & (place < double.sum(-1, keepdim=True))
        order = (~double).to(torch.uint8).argsort(dim=-1, stable=True)
        here = torch.arange(kept.shape[-1], device=kept.device).expand_as(order)
        return torch.where(copies, order.gather(2, place.clamp_min(0)), here)


@method(
    Paper(
        title="Cross-Self KV Cache Pruning for Efficient Vision-Language Inference",
        authors=("Pei, Xiaohuan", "Huang, Tao", "Xu, Chang"),
        year=2024,
        venue="arXiv preprint",
        key="pei2024csp",
        arxiv="2412.04652",
        code="https://github.com/TerryPei/CSP",
    ),
    adds=("score", "select", "attend"),
)
def csp(
    *,
    budget: Amount,
    recent: Window = 0.5,
    cross_ratio: Share = 0.5,
    bias: Factor = 1.0,
    n: Factor = 1.0,
    decode_n: Factor = 0.0,
    combine: Combine = "union",
    head_mean: bool = False,
    group: Reduction = "mean",
) -> Policy:
    """Keeps the best of two lists: what a modality pays to itself, and what it pays to the other.

    The last `recent` queries (tokens, or a share of the budget) vote, and `bias` times as many
    tokens are kept beside the lists. `n` is softmax-n's in the scores, `decode_n` that of decoding.
    """
    score = CrossSelfAttention(window=recent, n=n, group=group)
    exact = Fraction(str(recent)) * Fraction(str(bias))
    if isinstance(recent, float) and exact >= 1:
        raise InvalidParameter(f"recent={recent} times bias={bias} is the whole budget: lower one.")
    kept = int(exact) if isinstance(recent, int) else float(exact)
    return Policy(
        score=HeadMean(of=score) if head_mean else score,
        budget=Uniform(amount=budget),
        select=CrossSelf(
            recent=kept, cross_ratio=cross_ratio, combine="and" if combine == "and" else "union"
        ),
        merge=Doubles(cross_ratio=cross_ratio) if combine == "concat" else NoMerge(),
        attend=SoftmaxN(n=decode_n) if decode_n else Softmax(),
    )
