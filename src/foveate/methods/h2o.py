"""H2O: heavy hitters, the tokens that have received the most attention so far.

It runs once after the prefill by default, as the multimodal papers use it. ``when=over_budget`` is
the paper's own rule: one pair is evicted per decoded token while the scores keep adding up.
Differences from the authors' code: true positions, KV-head granularity under GQA, float32 sums.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Recent
from foveate.stages import ColumnSums, Reduction, TopK, Uniform


@method("zhang2023h2o")
def h2o(*, budget: Amount, recent: Recent = 0.5, group: Reduction = "mean") -> Policy:
    """Tokens that received the most attention from all queries, and the most recent tokens.

    Score: sum over all queries of the causal softmax (section 4).

    ``recent`` is a number of tokens or a share of the budget.

    Defaults:
        half of the budget each: the paper, and the release's 1024 and 1024 tokens
    """
    return Policy(
        score=ColumnSums(group=group), budget=Uniform(amount=budget), select=TopK(recent=recent)
    )
