"""CSP, Cross-Self Pruning: separate rankings of attention within a modality and across modalities.

Attention within a modality and across modalities have different scales, so one ranking starves one
of them. The window's attention is split by whether query and key have the same modality (eq. 1),
each half makes a list (eq. 2), and the kept tokens are drawn from both lists (eq. 3). A softmax
over fewer keys is sharper than before; softmax-n (eq. 7) compensates for that.

Differences from the paper:

* Scores stay per KV head (the paper averages heads, `head_mean=True`).
* The default is the union of the two lists, which grow until it fills the budget. Eq. 3 takes their
  intersection, which is empty whenever the window has only text, because the two lists then rank
  different keys. `combine="and"` grows the intersection to the budget instead.
* With `fill=False` nothing grows, and fewer pairs are kept than the budget allows: `combine="and",
  fill=False` is eqs. 2 to 4 exactly.
* Eqs. 11 and 12 lack a factor (the divergence is an expectation under weights that add up to less
  than one), so softmax-n is not proven to be always closer to the full cache: measure it.

Differences from the authors' code: it joins the lists and stores pairs that are in both twice,
which spends budget on doubling one weight (`combine="concat"`). It also rounds both lengths down,
so that of an odd number of slots one stays empty (`combine="concat", fill=False`).
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
    """Softmax-n of the window, summed by the modality of the queries (eq. 1).

    The part "self" is the sum over queries of the key's own modality, "cross" over those of the
    other, each reduced over the query heads of a KV head; the values are their sum.
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
    """Lengths K^s and K^c of the two lists (eq. 2), which share ``k`` slots.

    K^c is ``cross_ratio`` of them, taken as written (0.29 of 100 is 29) and rounded down. K^s is
    the rest with ``fill``, else rounded down as well.
    """

    own: Int[Tensor, "b h"]
    cross: Int[Tensor, "b h"]

    @classmethod
    def of(cls, k: Int[Tensor, "b h"], cross_ratio: float, fill: bool) -> Lengths:
        cross = part(k, cross_ratio)
        return cls(k - cross if fill else part(k, 1 - Fraction(str(cross_ratio))), cross)

    @classmethod
    def adding_up_to(cls, k: Int[Tensor, "b h"], cross_ratio: float, fill: bool) -> Lengths:
        """Return lengths that add up to ``k``.

        They are those of k slots, or of k + 1 where rounding both down would drop a slot.
        """
        lengths, of_more = cls.of(k, cross_ratio, fill), cls.of(k + 1, cross_ratio, fill)
        right = lengths.own + lengths.cross == k
        return cls(*(torch.where(right, a, b) for a, b in zip(lengths, of_more, strict=True)))


def distance_beyond_lists(
    user: str, scored: Scored, lengths: Lengths, fill: bool
) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
    """Return how far each slot ranks behind the end of the "self" list and of the "cross" list.

    Negative: the slot is on the list (eq. 2). Slots that can be on no list are n ranks behind or
    more: protected or empty ones, and those that score zero in a list that grows to ``fill`` the
    budget.

    Args:
        user: stage that calls, for the error.
        scored: one layer with a score that has both parts.
        lengths: lengths of the lists.
        fill: lists grow until the budget is used.

    Raises:
        InvalidParameter: a score without these parts.
    """
    parts, values = scored.scores.parts, scored.scores.values
    if not {"self", "cross"} <= parts.keys():
        raise InvalidParameter(
            f"the {user} needs a score with parts 'self' and 'cross'. Use "
            "score=cross_self_attention, alone or inside head_mean."
        )
    free = values.isfinite()
    own, cross = (
        _ranks(scores, free & (scores > 0) if fill else free)
        for scores in (parts["self"], parts["cross"])
    )
    return own - lengths.own[..., None], cross - lengths.cross[..., None]


def _ranks(scores: Float[Tensor, "b h n"], listed: Bool[Tensor, "b h n"]) -> Int[Tensor, "b h n"]:
    """Rank each slot by its score, from 0 for the highest; of equal ones the earlier is first.

    Slots that are not ``listed`` rank past the end of any list: 2 n.
    """
    order = scores.masked_fill(~listed, -1.0).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).masked_fill(~listed, 2 * scores.shape[-1])


@stage("cross_self", head_by_head=True)
class CrossSelf(KeepsRecent):
    """Selection from the lists of the parts "self" and "cross" (eqs. 2 and 3).

    K^c of the slots beside the recent tokens go to the best of "cross", K^s to the best of "self".
    Both lists then grow, one slot at a time, until their union (or their intersection, "and") fills
    the budget. A token enters no list in which it scores zero.

    Without ``fill`` the lists stay as long as eq. 2 says, with K^s rounded down like K^c, and their
    union or intersection is kept beside the recent tokens (eq. 3): usually fewer than the budget
    allows. With "concat", the lists joined, see :class:`Doubles`: it takes as many slots as both
    lists are long, those of the union and the next ones.
    """

    cross_ratio: Share = 0.5
    combine: Combine = "union"
    fill: bool = True

    @property
    def spares(self) -> bool:
        """True without ``fill``, which may keep less than the budget."""
        return not self.fill

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values = scored.scores.values
        free, protected = values.isfinite(), values == torch.inf
        k = counts - protected.sum(-1)
        lengths = Lengths.of(k, self.cross_ratio, self.fill)
        growth = torch.stack(
            distance_beyond_lists("selection cross_self", scored, lengths, self.fill)
        )
        first, second = growth.amin(0), growth.amax(0)  # growth until on one list; on both: eq. 3
        if not self.fill and self.combine != "concat":
            return protected | ((first if self.combine == "union" else second) < 0)  # eq. 4
        last = 2 * values.shape[-1]  # slots that can be on no list are at least half of it behind
        on_both = torch.where(second < last // 2, second, last + first)
        order = on_both if self.combine == "and" else first
        ranks = (-order).float().masked_fill(~free, -torch.inf)
        return protected | highest(ranks, lengths.own + lengths.cross)


@stage("doubles")
class Doubles:
    """Merge that stores pairs on both lists twice, which doubles their weight (CSP's release).

    The second copy takes the slot of a token that is on neither list, which the union had filled:
    there are as many as pairs on both lists. Such a slot keeps that token's position.
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
        """Return the slot whose pair each slot stores: its own, except for the copies."""
        free = scored.scores.values.isfinite()
        lengths = Lengths.adding_up_to((kept & free).sum(-1), self.cross_ratio, self.fill)
        distances = distance_beyond_lists("merge doubles", scored, lengths, self.fill)
        own, other = (distance < 0 for distance in distances)
        double, filling = kept & own & other, kept & free & ~own & ~other
        index = filling.cumsum(-1) - 1  # the first double is copied to the first filling slot
        copies = filling & (index < double.sum(-1, keepdim=True))
        order = (~double).to(torch.uint8).argsort(dim=-1, stable=True)
        own_slot = torch.arange(kept.shape[-1], device=kept.device).expand_as(order)
        return torch.where(copies, order.gather(2, index.clamp_min(0)), own_slot)


@stage("softmax_n")
class SoftmaxN:
    """Attention exp(x_i) / (n + sum_j exp(x_j)) over a compressed layer, for any n >= 0.

    It equals one more pair with the logit log n and a value of zeros.

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
    """Best tokens of two lists: attention within a modality, and attention across modalities.

    Score: eq. 1, with softmax-n (eq. 7); lists: eqs. 2 and 3. The last `recent` queries (tokens, or
    a share of the budget) vote, and `bias` times as many tokens are kept beside the lists. `n` is
    the n of softmax-n in the scores, `decode_n` that of decoding. With `fill` the lists grow until
    the budget is used; without it they are those of eq. 2.

    Args:
        cross_ratio: Share of the slots for tokens that the other modality attends to.
        bias: Recent tokens kept beside the two lists, as a multiple of `recent`.
        n: The n of softmax-n in the scores.
        decode_n: The n of softmax-n while the answer is generated.
        combine: Tokens kept of the two lists: their union, their intersection, or both joined.
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
            f"recent={recent} times bias={bias} keeps no recent token, so a head whose lists have "
            "no token in common would keep nothing: raise one of them, or leave fill=False out."
        )
    # Algorithm 1; pruning again whenever the cache outgrows T (lines 2 to 6) is `when=over_budget`
    return Policy(
        score=HeadMean(of=score) if head_mean else score,
        budget=Uniform(amount=budget),
        select=CrossSelf(recent=kept, cross_ratio=cross_ratio, combine=combine, fill=fill),
        merge=Doubles(cross_ratio=cross_ratio, fill=fill) if combine == "concat" else NoMerge(),
        attend=SoftmaxN(n=decode_n) if decode_n else Softmax(),
    )
