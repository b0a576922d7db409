"""SnapKV: tokens that the prompt's last queries attend to.

Scores are the mean over the last ``window`` queries of the float32 softmax (the release sums them:
same ranking), reduced over the query heads of a KV head, then pooled. The window is always kept and
counts inside the budget. Difference from the authors' code: one kept set per KV head, where the
release first repeats keys and values for all query heads and so stores ``hq / h`` times the memory.
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
    """Tokens that the prompt's last queries attend to, and those last tokens themselves.

    Score: the mean over the window's queries of the softmax, pooled along slots (section 4).

    Defaults:
        release, where nothing is set; its LongBench runs set `kernel=7,pool=max`
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=window),
    )
