"""TOVA: tokens that the last query attends to, one set for all heads of a layer.

It runs once after the prefill by default, as multimodal papers use it; ``when=over_budget`` is the
paper's own rule, evicting one pair for every decoded token. ``shared=false`` ranks each KV head by
itself.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.stages import HeadMean, TopK, Uniform, WindowAttention


@method("oren2024tova")
def tova(
    *,
    budget: Amount,
    shared: bool = True,
) -> Policy:
    """Tokens that the last query attends to, the same for all heads of a layer.

    Args:
        shared: Keep the same tokens in all heads of a layer.

    Defaults:
        release: one set for all heads
    """
    score = WindowAttention(window=1, kernel=1, pool="none")
    return Policy(
        score=HeadMean(of=score) if shared else score,
        budget=Uniform(amount=budget),
        select=TopK(recent=1),
    )
