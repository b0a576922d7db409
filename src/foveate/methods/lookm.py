"""LOOK-M: text first, and every evicted pair merged into a kept one.

Prompts are read text first, so text tokens rank before visual ones. The important and the recent
tokens are kept. Every other pair merges into the kept pair whose key is nearest, by averaged,
pivotal or weighted merging; once, after the prefill, with keys after RoPE. Equations 4 to 12 are
below.

Ours: with ``within=modality`` visual pairs merge only into visual ones, and text into text.

Difference from the paper: the sums of eqs. 10 to 12 run to L_sim inclusive and so count one term
too many; here n is the number of pairs that merge.

Differences from the authors' code:

* The budget is exactly N + M, as in eq. 8. The release keeps all text whatever N is
  (`protect_text=True`, which needs a budget that holds all text).
* The text prior is added in float32, as in eq. 5. The release adds -65516 to images, so that in
  float16 all their scores below 16 are equal.
* Averaged merging scatters the wrong rows in the release.
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

# The paper's equations, in its order, for a prompt without padding. The stages of the policy
# (`ColumnSums`, `TextPrior`, `TopK`, `MergeNearest`) compute the same for any prompt, in chunks and
# with less memory; a test compares them with these functions.


def importance(attention: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h n"]:
    """Return A_s, the attention that each token receives from all queries (eq. 4)."""
    return attention.sum(2)


def with_text_prior(
    a_s: Float[Tensor, "b h n"], vision: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Add T_p = max A_s to text, so that no visual token ranks before any text (eq. 5)."""
    return a_s + a_s.amax(-1, keepdim=True) * ~vision


def kept(a_s: Float[Tensor, "b h n"], important: int, recent: int) -> Bool[Tensor, "b h n"]:
    """Mark the last M tokens and the best N of those before them (eqs. 6 to 8)."""
    is_kept = torch.zeros_like(a_s, dtype=torch.bool)
    before = a_s.shape[-1] - recent
    # I of eq. 8
    best = a_s[..., :before].argsort(dim=-1, descending=True, stable=True)[..., :important]
    is_kept[..., before:] = True
    return is_kept.scatter(-1, best, True)  # eqs. 6 and 7: the same slots for keys and values


def nearest(
    k: Float[Tensor, "b h n d"], is_kept: Bool[Tensor, "b h n"]
) -> tuple[Int[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    """Return each key's kept key with the highest cosine, and that cosine (eq. 9)."""
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
    """Merge L_sim evicted keys or values into each kept one (eqs. 10 to 12)."""
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
    """Text first and the most attended tokens, with every other pair merged into a kept one.

    Score: eqs. 4 and 5; merging: eqs. 10 to 12. `recent` is M (tokens, or a share of the budget),
    the rest of the budget N. The rows of Table 1 are `merging` with and without `text_prior`;
    "none" without it is H2O.

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
