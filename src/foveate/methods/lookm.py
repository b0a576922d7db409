"""LOOK-M: look once. Text first, and what is not kept merges into what is.

Prompts are read text first, so text tokens are ranked before visual ones (eqs. 4 and 5:
`stages/score/wrappers.py`), and the important and the recent are kept (eqs. 6 to 8). Every other
pair merges into the kept one whose key is nearest (eq. 9), averaged, pivotal or weighted (eqs. 10
to 12: `stages/merge/nearest.py`). Once, after the prefill, with keys after RoPE.

Departs from the paper in: eqs. 10 to 12, whose sums run to L_sim inclusive and so count one term
too many; n is the number of pairs that merge.

Departs from the authors' code in: the budget, which is strictly N + M as in eq. 8; the release
keeps all text whatever N is (`protect_text=True`, which asks for a budget that holds it); the text
prior, which is added in float32 as in eq. 5, where the release adds -65516 to images, so that in
float16 all their scores below 16 are equal; averaged merging, which scatters the wrong rows there.
"""

from __future__ import annotations

from typing import Literal

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Recent
from foveate.core.policy import Policy
from foveate.core.protocols import NoMerge
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeNearest
from foveate.stages.score import ColumnSums, TextPrior
from foveate.stages.score.rows import Reduction
from foveate.stages.select import TopK


@method(
    Paper(
        title="LOOK-M: Look-Once Optimization in KV Cache for Efficient Multimodal Long-Context "
        "Inference",
        authors=(
            "Wan, Zhongwei",
            "Wu, Ziang",
            "Liu, Che",
            "Huang, Jinfa",
            "Zhu, Zhihong",
            "Jin, Peng",
            "Wang, Longyue",
            "Yuan, Li",
        ),
        year=2024,
        venue="Findings of the Association for Computational Linguistics: EMNLP",
        key="wan2024lookm",
        arxiv="2406.18139",
        code="https://github.com/SUSTechBruce/LOOK-M",
    ),
    adds=("score", "merge"),
    wraps=True,
)
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
) -> Policy:
    """Keeps text first and what received the most attention, and merges every other pair into it.

    `recent` is M (tokens, or a share of the budget), the rest of the budget N. Table 1: `merging`
    with and without `text_prior`; "none" without it is H2O.
    """
    sums = ColumnSums(group=group)
    nearest = MergeNearest(
        how="pivotal" if merging == "none" else merging, similarity_filter=similarity_filter
    )
    return Policy(
        score=TextPrior(of=sums) if text_prior else sums,
        budget=Uniform(amount=budget),
        select=TopK(recent=recent, sinks=sinks, protect_text=protect_text),
        merge=NoMerge() if merging == "none" else nearest,
    )
