"""CSP, Cross-Self Pruning: what a modality needs of itself, and what of the other.

Attention within a modality and across modalities live on different scales, so one ranking starves
one of them. The window's attention is split by whether query and key are of the same modality
(eq. 1), each half makes a list (eq. 2), and the kept tokens are drawn from both (eq. 3: both are in
`stages/cross_self.py`). A softmax over fewer keys is sharper than it was; softmax-n (eq. 7) takes
that back.

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

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch

from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scores, WindowWeights
from foveate.core.method import Paper, method
from foveate.core.parameters import Factor, Share, Window
from foveate.core.policy import Policy
from foveate.core.protocols import NoMerge, Softmax
from foveate.core.slots import Slots
from foveate.core.spec import stage
from foveate.errors import InvalidParameter
from foveate.stages.budget import Uniform
from foveate.stages.cross_self import Combine, CrossSelf, Doubles
from foveate.stages.recent import most_recent
from foveate.stages.score import HeadMean
from foveate.stages.score.rows import Reduction
from foveate.stages.score.window import by_modality, paid_by_modality


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


@stage("softmax_n")
@dataclass(frozen=True, kw_only=True)
class SoftmaxN:
    """exp(x_i) / (n + sum_j exp(x_j)) in the attention over a compressed layer, for any n >= 0.

    The same as one more pair, with the logit log n and a value of zeros.

    Source: CSP (arXiv:2412.04652), eq. 7.
    """

    n: Factor = 1.0


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
    fill: bool = True,
    head_mean: bool = False,
    group: Reduction = "mean",
) -> Policy:
    """Keeps the best of two lists: what a modality pays to itself, and what it pays to the other.

    The last `recent` queries (tokens, or a share of the budget) vote, and `bias` times as many
    tokens are kept beside the lists. `n` is softmax-n's in the scores, `decode_n` that of decoding.
    With `fill` the lists grow until the budget is used; without it they are those of eq. 2.
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
    return Policy(
        score=HeadMean(of=score) if head_mean else score,
        budget=Uniform(amount=budget),
        select=CrossSelf(recent=kept, cross_ratio=cross_ratio, combine=combine, fill=fill),
        merge=Doubles(cross_ratio=cross_ratio, fill=fill) if combine == "concat" else NoMerge(),
        attend=SoftmaxN(n=decode_n) if decode_n else Softmax(),
    )
