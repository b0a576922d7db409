"""Non-causal attention: tokens that nearby queries attend to, Compactor's second half on its own.

Differences from NVIDIA's kvpress are listed at the stage and at ``compactor``. Nothing is
protected, as in kvpress.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count, Kernel, Positive
from foveate.stages import TopK, Uniform
from foveate.stages.score.non_causal import NonCausalAttention
from foveate.stages.score.token_span import Over


@method("chari2025compactor")
def non_causal_attention(
    *,
    budget: Amount,
    chunk: Positive = 256,
    kernel: Kernel = 3,
    value_norm: bool = True,
    scaled: bool = False,
    sinks: Count = 0,
    recent: Count = 0,
    over: Over = "layer",
    as_released: bool = False,
) -> Policy:
    """Tokens that earlier and later queries of their own part of the prompt attend to.

    Args:
        value_norm: Multiply by the norm of the value.
        scaled: Scale logits as the model does; the authors' code does not.

    Defaults:
        kvpress
    """
    return Policy(
        score=NonCausalAttention(
            chunk=chunk,
            kernel=kernel,
            value_norm=value_norm,
            scaled=scaled,
            sinks=sinks,
            recent=recent,
            over=over,
            as_released=as_released,
        ),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
