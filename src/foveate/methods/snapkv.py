"""SnapKV: the prompt's last queries vote for what the answer will need.

Scores are the mean over the last ``window`` queries of the float32 softmax (the release sums them:
same ranking), reduced over the query heads of a KV head, then pooled; the window is always kept and
counts inside the budget. Departs from the authors' code: one kept set per KV head, where the
release first repeats keys and values to all query heads and so holds ``hq / h`` times the memory.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Kernel, Window
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention


@method("li2024snapkv")
def snapkv(
    *,
    budget: Amount,
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries of the prompt attend to, and those last tokens themselves.

    Defaults:
        release, where nothing is set; its LongBench runs set `kernel=7,pool=max`
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=window),
    )
