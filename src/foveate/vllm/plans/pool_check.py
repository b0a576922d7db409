"""Check that the pool can hold a request's prompt.

vLLM starts only if its pool holds the longest request. Under a policy that compresses while it
reads, that means the longest prompt under this policy: a request that chooses another policy, or
"full", may need more blocks than the pool has, and would wait for them forever.
"""

from __future__ import annotations

from typing import Any

from foveate.errors import InvalidParameter
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.tiers import room_of


def check_fits(config: Any, offer: Offer, plan: Plan, prompt: int) -> None:
    """Refuse a request whose prompt the pool cannot hold.

    It runs in the process that takes requests in. Where that process does not know the pool's size,
    the scheduler refuses the request. ``config`` is a ``VllmConfig``.

    Raises:
        InvalidParameter: names the peak of the prompt, and the size of the pool.
    """
    pool, block = config.cache_config.num_gpu_blocks, config.cache_config.block_size
    if not offer.recompresses or not pool:
        return
    blocks = pool // config.parallel_config.data_parallel_size - 1  # without vLLM's null block
    if plan.policy is not None:
        boundaries = Rooms((room_of(plan.policy),), block).own(plan.length)
        plan = plan._replace(boundaries={0: boundaries}) if boundaries.every.tokens else plan
    peak = plan.peak(0, prompt + 1, config.max_concurrent_batches)
    if peak > blocks * block:
        raise InvalidParameter(
            f"this prompt of {prompt} tokens holds {peak} tokens at once under "
            f"{plan.policy or 'foveate_policy=full'}, and the pool {blocks * block}. Choose a "
            "policy that compresses while it reads (when=over_budget(every=256,reading=true)), or "
            "a smaller budget."
        )
