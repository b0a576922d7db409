"""Leverage: keys that lie out, Compactor's first half on its own.

Departs from NVIDIA's kvpress: see the stage, and ``compactor``. Nothing is protected, as there.
"""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import Paper, method
from foveate.policies.parameters import Columns, Count, Seed
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score.held import Over
from foveate.stages.score.leverage import Leverage
from foveate.stages.select import TopK


@method(
    Paper(
        title="Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate "
        "Leverage Scores",
        authors=("Chari, Vivek", "Van Durme, Benjamin"),
        year=2025,
        venue="arXiv",
        key="chari2025compactor",
        arxiv="2507.08143",
        code="https://github.com/vnchari/compactor-vllm",
    ),
)
def leverage(
    *,
    budget: Amount,
    sketch: Columns | None = 48,
    sinks: Count = 0,
    recent: Count = 0,
    over: Over = "layer",
    seed: Seed = 0,
) -> Policy:
    """Keeps the tokens whose keys have the highest leverage; needs no attention.

    Defaults:
        kvpress
    """
    return Policy(
        score=Leverage(sketch=sketch, sinks=sinks, recent=recent, over=over, seed=seed),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
