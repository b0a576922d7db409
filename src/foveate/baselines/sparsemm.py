"""SparseMM: SnapKV whose heads keep more the better they look at what they name in an image.

``profile`` holds the heads' scores: ``foveate.import_head_scores`` makes one of the files that the
authors publish.
Departs from the authors' code in the total, which is exact, where the release lets lapse what a
strong head cannot use in a short prompt (``as_released``).
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
        title="SparseMM: Head Sparsity Emerges from Visual Concept Responses in MLLMs",
        authors=(
            "Wang, Jiahui", "Liu, Zuyan", "Rao, Yongming", "Lu, Jiwen",
        ),
        year=2025,
        venue="International Conference on Computer Vision",
        key="wang2025sparsemm",
        arxiv="2506.05344",
        code="https://github.com/CR400AF-A/SparseMM",
    ),
    adds=("budget",),
)  # fmt: skip
def sparsemm(
    *,
    budget: Amount,
    profile: str,
    ratio: float = 0.1,
    as_released: bool = False,
    window: int = 32,
    kernel: int = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in heads that look at what they read.

    ``ratio`` of the budget is shared evenly, the rest by the heads' scores.
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=HeadTable(
            amount=budget, profile=profile, of="sparsemm", floor=ratio, as_released=as_released
        ),
        select=TopK(recent=window),
    )
