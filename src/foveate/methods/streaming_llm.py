"""StreamingLLM: attention sinks and the most recent tokens.

Difference from the authors' code: keys keep the rotary positions that they were cached with. The
release caches keys before RoPE and rotates them by their index in the cache, which is undefined for
the multi-axis positions of Qwen-VL; the multimodal papers compare with the variant used here.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count
from foveate.stages import Recency, TopK, Uniform


@method("xiao2024streamingllm")
def streaming_llm(*, budget: Amount, sinks: Count = 4) -> Policy:
    """First `sinks` tokens and the most recent ones.

    Defaults:
        paper and release
    """
    return Policy(score=Recency(), budget=Uniform(amount=budget), select=TopK(sinks=sinks))
