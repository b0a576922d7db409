"""CSP, Cross-Self Pruning: what a modality needs of itself, and what of the other.

Attention within a modality and across modalities live on different scales, so one ranking starves
one of them. The window's attention is split by whether query and key are of the same modality (eq.
1), each half makes a list (eq. 2), and the kept tokens are drawn from both (eq. 3). A softmax over
fewer keys is sharper than it was; softmax-n (eq. 7) takes that back.

Departs from the paper in: scores stay per KV head (the paper averages heads, `head_mean=True`), and
eq. 3, the intersection of the lists, which is empty whenever the window holds text alone: the two
lists see different keys then. The default is the lists' union, both growing until it fills the
budget; `combine="and"` lets their intersection grow to it instead. With `fill=False` nothing grows,
and fewer pairs are kept than the budget allows: `combine="and", fill=False` is eqs. 2 to 4 to the
letter. Eqs. 11 and 12 lack a factor (the divergence is an expectation under weights that add up to
less than one), so nothing says that softmax-n is always closer to the full cache: measure it.

Departs from the authors' code, which joins the lists and stores what stands in both twice: that
spends budget on doubling one weight (`combine="concat"`). It also rounds both lengths down, so that
of an odd number of places one is kept nowhere (`combine="concat", fill=False`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores, WindowWeights
from foveate.cache.slots import Slots
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Factor, Share, Window
from foveate.policies.protocols import NoMerge, Softmax
from foveate.stages import HeadMean, KeepsRecent, Reduction, Uniform, highest
from foveate.stages.recent import most_recent, part
from foveate.stages.score.window import by_modality, paid_by_modality

Combine = Literal["union", "and", "concat"]


@stage("cross_self_attention", head_by_head=True)
class CrossSelfAttention:
    """Eq. 1: the window's softmax-n, summed over queries of the key's own modality (part "self")
    and over those of the other (part "cross"), reduced over the query heads of a KV head.
    """

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


class Lengths(NamedTuple):
    """K^s and K^c of eq. 2, which share ``k`` places: ``cross_ratio`` of them, as written (0.29 of
    100 is 29) and rounded down, is the second. The first is the rest, if that is to ``fill`` the
    budget, or rounded down as well.
    """

    own: Int[Tensor, "b h"]
    cross: Int[Tensor, "b h"]

    @classmethod
    def of(cls, k: Int[Tensor, "b h"], cross_ratio: float, fill: bool) -> Lengths:
        cross = part(k, cross_ratio)
        return cls(k - cross if fill else part(k, 1 - Fraction(str(cross_ratio))), cross)

    @classmethod
    def adding_up_to(cls, k: Int[Tensor, "b h"], cross_ratio: float, fill: bool) -> Lengths:
        """Those that are ``k`` in all: of k places, or of one more where rounding takes one."""
        lengths, of_more = cls.of(k, cross_ratio, fill), cls.of(k + 1, cross_ratio, fill)
        right = lengths.own + lengths.cross == k
        return cls(*(torch.where(right, a, b) for a, b in zip(lengths, of_more, strict=True)))


def beyond_lists(
    who: str, scored: Scored, lengths: Lengths, fill: bool
) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
    """Eq. 2: how many places each slot stands behind the end of the list by the part "self", and
    of that by "cross"; negative: it is on the list. What can be in no list is n places behind or
    more: what is protected or empty, and what scores zero in a list that grows to ``fill`` the
    budget.

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
    own, cross = (
        _places(one, free & (one > 0) if fill else free) for one in (parts["self"], parts["cross"])
    )
    return own - lengths.own[..., None], cross - lengths.cross[..., None]


def _places(scores: Float[Tensor, "b h n"], listed: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """Each slot's place in the order of the highest scores, from 0; of equal ones the earlier is
    first. What is not ``listed`` has a place past the end of any list: 2 n.
    """
    order = scores.masked_fill(~listed, -1.0).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).masked_fill(~listed, 2 * scores.shape[-1])


@stage("cross_self", head_by_head=True)
class CrossSelf(KeepsRecent):
    """Eqs. 2 and 3: K^c of the places beside the recent tokens go to the best of the part "cross",
    K^s to the best of "self". Both lists then grow, a place at a time, until their union (or their
    intersection, "and") fills the budget. A token enters no list in which it scores zero.

    Without ``fill`` the lists stay as long as eq. 2 says, K^s rounded down as K^c is, and what is
    kept beside the recent tokens is their union or intersection (eq. 3): as a rule fewer than the
    budget allows. For "concat", the lists joined, see :class:`Doubles`: it takes as many slots as
    both lists are long, those of the union and the next.
    """

    cross_ratio: Share = 0.5
    combine: Combine = "union"
    fill: bool = True

    @property
    def spares(self) -> bool:
        """True without ``fill``."""
        return not self.fill

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values = scored.scores.values
        free, protected = values.isfinite(), values == torch.inf
        k = counts - protected.sum(-1)
        lengths = Lengths.of(k, self.cross_ratio, self.fill)
        growth = torch.stack(beyond_lists("selection cross_self", scored, lengths, self.fill))
        first, second = growth.amin(0), growth.amax(0)  # to be on either list; on both: eq. 3
        if not self.fill and self.combine != "concat":
            return protected | ((first if self.combine == "union" else second) < 0)  # eq. 4
        last = 2 * values.shape[-1]  # what is in no list is at least half as far behind
        on_both = torch.where(second < last // 2, second, last + first)
        order = on_both if self.combine == "and" else first
        ranks = (-order).float().masked_fill(~free, -torch.inf)
        return protected | highest(ranks, lengths.own + lengths.cross)


@stage("doubles")
class Doubles:
    """The lists joined (CSP's release): a pair on both is held twice, so its weight is doubled.

    The second copy stands in the slot of a token that is on neither list, which the union had
    filled up with: as many as both lists name. Such a slot still bears that token's position.
    ``cross_ratio`` and ``fill`` are those of the selection.

    Source: CSP (arXiv:2412.04652), the authors' code.
    """

    cross_ratio: Share = 0.5
    fill: bool = True

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        source = self._source(scored, kept)[..., None]
        k, v = scored.layer.k, scored.layer.v
        return k.gather(2, source.expand_as(k)), v.gather(2, source.expand_as(v))

    def _source(self, scored: Scored, kept: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
        """The slot whose pair each slot holds: its own, but for the copies."""
        free = scored.scores.values.isfinite()
        lengths = Lengths.adding_up_to((kept & free).sum(-1), self.cross_ratio, self.fill)
        beyond = beyond_lists("merge doubles", scored, lengths, self.fill)
        own, other = (places < 0 for places in beyond)
        double, filling = kept & own & other, kept & free & ~own & ~other
        place = filling.cumsum(-1) - 1  # the first of the doubles goes to the first such slot
        copies = filling & (place < double.sum(-1, keepdim=True))
        order = (~double).to(torch.uint8).argsort(dim=-1, stable=True)
        here = torch.arange(kept.shape[-1], device=kept.device).expand_as(order)
        return torch.where(copies, order.gather(2, place.clamp_min(0)), here)


@stage("softmax_n")
class SoftmaxN:
    """exp(x_i) / (n + sum_j exp(x_j)) in the attention over a compressed layer, for any n >= 0.

    The same as one more pair, with the logit log n and a value of zeros.

    Source: CSP (arXiv:2412.04652), eq. 7.
    """

    n: Factor = 1.0


@method("pei2024csp", adds=("score", "select", "attend"))
def csp(
    *,
    budget: Amount,
    recent: Window = 0.5,
    cross_ratio: Share = 0.5,
    bias: Factor = 1.0,
    n: Factor = 1.0,
    decode_n: Factor = 0.0,
    combine: Combine = "union",
    fill: bool = True,
    head_mean: bool = False,
    group: Reduction = "mean",
) -> Policy:
    """Keeps the best of two lists: what a modality pays to itself, and what it pays to the other.

    The last `recent` queries (tokens, or a share of the budget) vote, and `bias` times as many
    tokens are kept beside the lists. `n` is softmax-n's in the scores, `decode_n` that of decoding.
    With `fill` the lists grow until the budget is used; without it they are those of eq. 2.

    Args:
        cross_ratio: Share of the places for what the other modality attends to.
        bias: How many times the recent tokens are kept beside the two lists.
        n: The n of softmax-n in the scores.
        decode_n: The n of softmax-n while the answer is generated.
        combine: What of the two lists is kept: their union, what is on both, or both joined.
        fill: Let the lists grow until the budget is used.
        head_mean: Score by the mean over all heads.

    Defaults:
        `n`: section 3.3; `cross_ratio`, `bias`: Appendix A; `recent`: the release's `hh_ratio=0.1,
        recent_ratio=0.1`, which also joins the lists (`combine=concat,fill=false`); eqs. 2 to 4 are
        `combine=and,fill=false,head_mean=true`
    """
    score = CrossSelfAttention(window=recent, n=n, group=group)
    exact = Fraction(str(recent)) * Fraction(str(bias))
    if isinstance(recent, float) and exact >= 1:
        raise InvalidParameter(f"recent={recent} times bias={bias} is the whole budget: lower one.")
    kept = int(exact) if isinstance(recent, int) else float(exact)
    if combine == "and" and not fill and not kept:
        raise InvalidParameter(
            f"recent={recent} times bias={bias} keeps no recent token, and lists that do not meet "
            "would leave a head with nothing: raise one, or leave fill=False out."
        )
    # Algorithm 1; pruning again whenever the cache outgrows T (lines 2 to 6) is `when=over_budget`
    return Policy(
        score=HeadMean(of=score) if head_mean else score,
        budget=Uniform(amount=budget),
        select=CrossSelf(recent=kept, cross_ratio=cross_ratio, combine=combine, fill=fill),
        merge=Doubles(cross_ratio=cross_ratio, fill=fill) if combine == "concat" else NoMerge(),
        attend=SoftmaxN(n=decode_n) if decode_n else Softmax(),
    )
