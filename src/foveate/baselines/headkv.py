"""HeadKV: SnapKV whose heads keep more the better they retrieve and reason (HeadKV-R2).

``profile`` holds the heads' scores: ``foveate.import_head_scores`` makes one of the files that the
authors publish. Departs from the
authors' code in: KV heads, where the release scores query heads on a cache repeated for each; the
total, which is exact, where the release lets lapse what a strong head cannot use in a short prompt
(``as_released``).
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.policy import Policy
from foveate.stages.budget import HeadTable
from foveate.stages.score import WindowAttention
from foveate.stages.score.groups import Reduction
from foveate.stages.score.window import Pool
from foveate.stages.select import TopK


@method(
    Paper(
        title="Not All Heads Matter: A Head-Level KV Cache Compression Method with Integrated "
        "Retrieval and Reasoning",
        authors=(
            "Fu, Yu", "Cai, Zefan", "Asi, Abedelkadir", "Xiong, Wayne", "Dong, Yue", "Xiao, Wen",
        ),
        year=2025,
        venue="International Conference on Learning Representations",
        key="fu2025headkv",
        arxiv="2410.19258",
        code="https://github.com/FYYFU/HeadKV",
    ),
    adds=("budget",),
)  # fmt: skip
def headkv(
    *,
    budget: Amount,
    profile: str,
    beta: float = 1.01,
    temperature: float = 1.0,
    as_released: bool = False,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in heads that retrieve what is asked for.

    One ``beta``-th of the budget goes by the heads' scores, the rest is shared evenly.
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=HeadTable(
            amount=budget,
            profile=profile,
            of="headkv",
            floor=1 - 1 / beta,
            temperature=temperature,
            as_released=as_released,
        ),
        select=TopK(recent=window),
    )
