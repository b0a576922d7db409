"""RoCo: what receives little attention, and steadily so, leaves.

Once after the prefill by default; ``when=over_budget`` is the paper's own rule. Departs from the
authors' code: true positions; the deviation of a token that one query has seen is zero, where the
release's can be NaN.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Recent
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import MeanAttention
from foveate.stages.select import Robust


@method(
    Paper(
        title="On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language "
        "Model Inference",
        authors=("Ren, Siyu", "Zhu, Kenny Q."),
        year=2024,
        venue="arXiv",
        key="ren2024roco",
        arxiv="2402.06262",
        code="https://github.com/DRSY/EasyKV",
    ),
)  # fmt: skip
def roco(
    *,
    budget: Amount,
    recent: Recent = 0.3,
    sinks: Count = 4,
) -> Policy:
    """Keeps tokens whose attention is high on average, or varies."""
    return Policy(
        score=MeanAttention(),
        budget=Uniform(amount=budget),
        select=Robust(recent=recent, sinks=sinks),
    )
