"""TGV-KV: visual tokens that important text attends to; more for layers in which text looks.

Departs from the authors' code in the total, which is exact; in several images, which the release
takes for one; in batches, over which it averages; and in decoding, where it drops the visual token
that the newest query attends to least.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count
from foveate.core.policy import Policy
from foveate.stages.budget import LayerShares
from foveate.stages.score import TextGuided
from foveate.stages.select import TopK


@method(
    Paper(
        title="TGV-KV: Text-Grounded KV Eviction for Vision-Language Models",
        authors=(
            "Liu, Jizhihui", "Han, Ruizi", "Zhang, Miao", "Shao, Rui", "Liu, Xuebo",
            "Guan, Weili", "Wang, Yaowei",
        ),
        year=2026,
        venue="arXiv",
        key="liu2026tgvkv",
        arxiv="2606.03075",
        code="https://github.com/Danielement321/TGV-KV",
    ),
    adds=("score", "budget"),
)  # fmt: skip
def tgv_kv(
    *,
    budget: Amount,
    sinks: Count = 4,
    recent: Count = 1,
) -> Policy:
    """Keeps text first, and the visual tokens that the important text attends to."""
    return Policy(
        score=TextGuided(),
        budget=LayerShares(amount=budget, of="mass"),
        select=TopK(sinks=sinks, recent=recent),
    )
