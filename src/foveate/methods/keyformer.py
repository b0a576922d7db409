"""Keyformer: heavy hitters under Gumbel noise, so that no token is written off early.

Once after the prefill by default; ``when=over_budget`` is the paper's own rule. The noise follows
from ``seed``; the authors' code draws it anew for every run.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Factor, Recent, Seed
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import GumbelSums
from foveate.stages.score.groups import Reduction
from foveate.stages.score.gumbel import Tau
from foveate.stages.select import TopK


@method(
    Paper(
        title="Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative "
        "Inference",
        authors=("Adnan, Muhammad", "Arunkumar, Akhil", "Jain, Gaurav", "Nair, Prashant J.",
                 "Soloveychik, Ilya", "Kamath, Purushotham"),
        year=2024,
        venue="Machine Learning and Systems",
        key="adnan2024keyformer",
        arxiv="2403.09054",
        code="https://github.com/d-matrix-ai/keyformer-llm",
    ),
)  # fmt: skip
def keyformer(
    *,
    budget: Amount,
    recent: Recent = 0.3,
    seed: Seed = 0,
    tau: Tau = 1.0,
    tau_step: Factor = 0.0,
    group: Reduction = "mean",
) -> Policy:
    """Keeps the tokens that received the most attention under seeded noise, and the most recent."""
    return Policy(
        score=GumbelSums(seed=seed, tau=tau, tau_step=tau_step, group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
    )
