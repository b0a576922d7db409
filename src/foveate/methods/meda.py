"""MEDA: more for layers whose attention is spread out; text first, the rest merges.

``entropy`` "all" is the entropy that the authors' code uses, "cross" the paper's cross-modal one,
which the code has and never calls. Departs from the code in the total, which is exact: it clamps
the layers' shares and does not make up for that; and in merging at the end of the prefill instead
of in the first decoding step.
"""

from __future__ import annotations

from typing import Literal

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Recent
from foveate.core.policy import Policy
from foveate.stages.budget import LayerShares
from foveate.stages.merge import MergeNearest
from foveate.stages.score import AttentionEntropy, ColumnSums, TextPrior
from foveate.stages.select import TopK


@method(
    Paper(
        title="MEDA: Dynamic KV Cache Allocation for Efficient Multimodal Long-Context Inference",
        authors=("Wan, Zhongwei", "Shen, Hui", "Wang, Xin", "Liu, Che", "Mai, Zheda",
                 "Zhang, Mi"),
        year=2025,
        venue="North American Chapter of the Association for Computational Linguistics",
        key="wan2025meda",
        arxiv="2502.17599",
        code="https://github.com/AIoT-MLSys-Lab/MEDA",
    ),
    adds=("score", "budget", "merge"),
)  # fmt: skip
def meda(
    *,
    budget: Amount,
    recent: Recent = 0.5,
    entropy: Literal["all", "cross"] = "all",
) -> Policy:
    """Keeps text first and what received the most attention, more in layers of high entropy."""
    return Policy(
        score=AttentionEntropy(of=TextPrior(of=ColumnSums()), kind=entropy),
        budget=LayerShares(amount=budget, of="entropy", how="softmax"),
        select=TopK(recent=recent),
        merge=MergeNearest(how="pivotal"),
    )
