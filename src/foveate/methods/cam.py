"""CaM: H2O whose evicted values are merged, by chance, into those of the kept tokens after them.

The merging is `stages/merge/following.py`, and goes with any score that adds up attention
(``h2o+cam``, ``snapkv+cam``). Once after the prefill by default; ``when=over_budget`` is the
paper's own rule, one pair per decoded token.

Departs from the authors' code in: the attention, which is the score's sum over all queries, as in
the paper and in kvpress, where the release takes the current query's alone; the mean, which is over
the tokens merged into, where the release takes all recent ones; and the draw, which follows from
``seed``. Departs from kvpress in: what is kept, head by head, and that every evicted value may
merge, where kvpress lets as many do as tokens were decoded since it compressed last.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Positive, Recent, Seed
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeFollowing
from foveate.stages.score import ColumnSums
from foveate.stages.score.rows import Reduction
from foveate.stages.select import TopK


@method(
    Paper(
        title="CaM: Cache Merging for Memory-efficient LLMs Inference",
        authors=(
            "Zhang, Yuxin",
            "Du, Yuxuan",
            "Luo, Gen",
            "Zhong, Yunshan",
            "Zhang, Zhenyu",
            "Liu, Shiwei",
            "Ji, Rongrong",
        ),
        year=2024,
        venue="International Conference on Machine Learning",
        key="zhang2024cam",
        code="https://github.com/zyxxmu/cam",
    ),
    adds=("merge",),
)
def cam(
    *,
    budget: Amount,
    recent: Recent = 0.5,
    into: Positive = 32,
    sampled: bool = True,
    seed: Seed = 0,
    group: Reduction = "mean",
) -> Policy:
    """Keeps what received the most attention, and adds other values to the kept ones after them.

    ``into`` is how many kept tokens share a value; ``recent`` a number of tokens or a share of the
    budget.

    Args:
        into: How many of the kept tokens that follow share a dropped value.
        sampled: Merge by chance, by the tokens' attention; otherwise always.

    Defaults:
        `recent`: the release's `start_ratio` = `recent_ratio`; `into`: kvpress
    """
    return Policy(
        score=ColumnSums(group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
        merge=MergeFollowing(into=into, sampled=sampled, seed=seed),
    )
