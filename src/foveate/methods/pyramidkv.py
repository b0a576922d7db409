"""PyramidKV: SnapKV with more tokens in the early layers, where attention is spread out.

Departs from the authors' code in the total, which is exact; the release rounds the step between
layers down and keeps up to 5 % more (``as_released``). One kept set per KV head.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Kernel, Positive, Window
from foveate.core.policy import Policy
from foveate.stages.budget import Pyramid
from foveate.stages.score import WindowAttention
from foveate.stages.score.groups import Reduction
from foveate.stages.score.window import Pool
from foveate.stages.select import TopK


@method(
    Paper(
        title="PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
        authors=(
            "Cai, Zefan", "Zhang, Yichi", "Gao, Bofei", "Liu, Yuliang", "Li, Yucheng",
            "Liu, Tianyu", "Lu, Keming", "Xiong, Wayne", "Dong, Yue", "Hu, Junjie", "Xiao, Wen",
        ),
        year=2025,
        venue="Conference on Language Modeling",
        key="cai2025pyramidkv",
        arxiv="2406.02069",
        code="https://github.com/Zefan-Cai/KVCache-Factory",
    ),
    adds=("budget",),
)  # fmt: skip
def pyramidkv(
    *,
    budget: Amount,
    beta: Positive = 20,
    as_released: bool = False,
    window: Window = 8,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in early layers and less in late ones.

    The last layer keeps a ``beta``-th of the average.
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Pyramid(amount=budget, beta=beta, as_released=as_released),
        select=TopK(recent=window),
    )
