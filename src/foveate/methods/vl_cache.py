"""VL-Cache: what the text after the last image attends to; more for layers that attend densely.

Departs from the paper: scores stay per KV head.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Recent, ShareBetween
from foveate.core.policy import Policy
from foveate.stages.budget import LayerShares
from foveate.stages.score import AfterVision
from foveate.stages.score.groups import Reduction
from foveate.stages.select import TopK


@method(
    Paper(
        title="VL-Cache: Sparsity and Modality-Aware KV Cache Compression for Vision-Language "
        "Model Inference Acceleration",
        authors=("Tu, Dezhan", "Vashchilenko, Danylo", "Lu, Yuzhe", "Xu, Panpan"),
        year=2025,
        venue="International Conference on Learning Representations",
        key="tu2025vlcache",
        arxiv="2410.23317",
    ),
    adds=("score", "budget"),
)  # fmt: skip
def vl_cache(
    *,
    budget: Amount,
    recent: Recent = 0.1,
    threshold: ShareBetween = 0.01,
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the text after the images attends to, more in layers that attend densely."""
    return Policy(
        score=AfterVision(threshold=threshold, group=group),
        budget=LayerShares(amount=budget, of="density"),
        select=TopK(recent=recent),
    )
