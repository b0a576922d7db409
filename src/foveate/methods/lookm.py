"""LOOK-M: look once. Text first, and what is not kept merges into what is.

Prompts are read text first, so text tokens are ranked before visual ones, and the important and
the recent are kept. Every other pair merges into the kept one whose key is nearest, averaged,
pivotal or weighted. Once, after the prefill, with keys after RoPE. Equations 4 to 12 below.

Ours: ``within=modality``, where visual pairs merge into visual ones alone and text into text.

Departs from the paper in: eqs. 10 to 12, whose sums run to L_sim inclusive and so count one term
too many; n is the number of pairs that merge.

Departs from the authors' code in: the budget, which is strictly N + M as in eq. 8; the release
keeps all text whatever N is (`protect_text=True`, which asks for a budget that holds it); the text
prior, which is added in float32 as in eq. 5, where the release adds -65516 to images, so that in
float16 all their scores below 16 are equal; averaged merging, which scatters the wrong rows there.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count, Recent
from foveate.policies.protocols import NoMerge
from foveate.stages import ColumnSums, MergeNearest, Reduction, TextPrior, TopK, Uniform
from foveate.stages.merge import How, Within

# The paper's equations, in its order, of a prompt that holds no padding. The stages of the policy
# (`ColumnSums`, `TextPrior`, `TopK`, `MergeNearest`) do the same for any prompt, in chunks and with
# less memory; a test holds them to be these.


def importance(attention: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h n"]:
    """Eq. 4: A_s, what each token is paid by all queries."""
    return attention.sum(2)


def with_text_prior(
    a_s: Float[Tensor, "b h n"], vision: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Eq. 5: text gets T_p = max A_s on top, so that no visual token is before any text."""
    return a_s + a_s.amax(-1, keepdim=True) * ~vision


def kept(a_s: Float[Tensor, "b h n"], important: int, recent: int) -> Bool[Tensor, "b h n"]:
    """Eqs. 6 to 8: the last M tokens, and the best N of those before them."""
    is_kept = torch.zeros_like(a_s, dtype=torch.bool)
    before = a_s.shape[-1] - recent
    # I of eq. 8
    best = a_s[..., :before].argsort(dim=-1, descending=True, stable=True)[..., :important]
    is_kept[..., before:] = True
    return is_kept.scatter(-1, best, True)  # eqs. 6 and 7: the same of keys and of values


def nearest(
    k: Float[Tensor, "b h n d"], is_kept: Bool[Tensor, "b h n"]
) -> tuple[Int[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    """Eq. 9: of every key the kept one with the highest cosine, and that cosine."""
    unit = F.normalize(k.float(), dim=-1)
    cosines = (unit @ unit.mT).masked_fill(~is_kept[:, :, None], -torch.inf)
    best = cosines.max(-1)
    return best.indices, best.values


def merged(
    x: Float[Tensor, "b h n d"],
    is_kept: Bool[Tensor, "b h n"],
    target: Int[Tensor, "b h n"],
    cosine: Float[Tensor, "b h n"],
    how: How,
) -> Float[Tensor, "b h n d"]:
    """Eqs. 10 to 12, of keys or values: each kept one, with the L_sim that merge into it."""
    own = x.float()
    joins = F.one_hot(target, x.shape[2]).mT.float() * ~is_kept[:, :, None]  # [b h kept evicted]
    l_sim = joins.sum(-1, keepdim=True)
    if how == "averaged":
        total = joins @ own  # eq. 10
    elif how == "pivotal":
        total = (joins @ own + l_sim * own) / 2  # eq. 11
    else:
        total = joins @ (cosine[..., None] * own)  # eq. 12
    return (own + total) / (l_sim + 1)


@method("wan2024lookm", adds=("score", "merge"), wraps=True)
def lookm(
    *,
    budget: Amount,
    recent: Recent = 0.5,
    merging: Literal["pivotal", "averaged", "weighted", "none"] = "pivotal",
    text_prior: bool = True,
    protect_text: bool = False,
    sinks: Count = 0,
    similarity_filter: bool = False,
    group: Reduction = "mean",
    within: Within = "all",
) -> Policy:
    """Keeps text first and what received the most attention, and merges every other pair into it.

    `recent` is M (tokens, or a share of the budget), the rest of the budget N. Table 1: `merging`
    with and without `text_prior`; "none" without it is H2O.

    Args:
        text_prior: Keep text before visual tokens.
        similarity_filter: Merge only pairs that are alike.
        within: Merge into any kept pair, or into one of the same modality.

    Defaults:
        `recent`: alpha1 = alpha2 of Table 1; `merging`, `text_prior`: section 5.2
    """
    sums = ColumnSums(group=group)
    nearest = MergeNearest(
        how="pivotal" if merging == "none" else merging,
        similarity_filter=similarity_filter,
        within=within,
    )
    return Policy(
        score=TextPrior(of=sums) if text_prior else sums,
        budget=Uniform(amount=budget),
        select=TopK(recent=recent, sinks=sinks, protect_text=protect_text),
        merge=NoMerge() if merging == "none" else nearest,
    )
