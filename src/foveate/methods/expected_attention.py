"""Expected Attention: what queries yet to come will attend to, from what queries look like.

Departs from the authors' code: the statistics are those of the prompt's last queries as they are,
with their rotary positions, where the release takes them before the rotation and turns them to the
mean of the next 512 positions.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Factor, Positive
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import ExpectedAttention
from foveate.stages.select import TopK


@method(
    Paper(
        title="Expected Attention: KV Cache Compression by Estimating Attention from Future "
        "Queries Distribution",
        authors=("Devoto, Alessio", "Jeblick, Maximilian", "J{\\'e}gou, Simon"),
        year=2025,
        venue="arXiv",
        key="devoto2025expected",
        arxiv="2510.00636",
        code="https://github.com/NVIDIA/kvpress",
    ),
)  # fmt: skip
def expected_attention(
    *,
    budget: Amount,
    window: Positive = 256,
    covariance: bool = True,
    epsilon: Factor = 0.0,
    sinks: Count = 4,
) -> Policy:
    """Keeps what queries like the last ones are expected to attend to, times the value's norm."""
    return Policy(
        score=ExpectedAttention(window=window, covariance=covariance, epsilon=epsilon),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks),
    )
