"""AdaKV: SnapKV whose heads share a layer's budget, by one ranking over all of them.

Departs from the authors' code in the total, which is exact; the release rounds every head by itself
(``as_released``). Ragged: heads keep different numbers, and only these are stored.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Kernel, Share, Window
from foveate.core.policy import Policy
from foveate.stages.budget import AcrossHeads
from foveate.stages.score import WindowAttention
from foveate.stages.score.groups import Reduction
from foveate.stages.score.window import Pool
from foveate.stages.select import TopK


@method(
    Paper(
        title="Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient "
        "LLM Inference",
        authors=("Feng, Yuan", "Lv, Junlin", "Cao, Yukun", "Xie, Xike", "Zhou, S. Kevin"),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="feng2025adakv",
        arxiv="2407.11550",
        code="https://github.com/FFY0/AdaKV",
    ),
    adds=("budget",),
)  # fmt: skip
def adakv(
    *,
    budget: Amount,
    floor: Share = 0.2,
    normalised: bool = False,
    as_released: bool = False,
    window: Window = 32,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in heads that spread their attention.

    ``floor`` is the share of an even budget that every head has.
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=AcrossHeads(
            amount=budget, floor=floor, normalised=normalised, as_released=as_released
        ),
        select=TopK(recent=window),
    )
