"""Whether the pool holds what a request asks for, where the engine serves prompts that are longer.

vLLM starts only if its pool holds the longest request. Under a policy that compresses while it
reads, that is the longest prompt of this policy alone: a request that chooses another, or to be
kept whole, may need more than there is, and would wait for it for ever.
"""

from __future__ import annotations

from typing import Any

from foveate.errors import InvalidParameter
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.tiers import room_of


def check_fits(config: Any, offer: Offer, plan: Plan, prompt: int) -> None:
    """Refuses a request whose prompt the pool cannot hold, as far as the process that takes
    requests in knows the pool; the scheduler refuses the others. ``config`` is a ``VllmConfig``.

    Raises:
        InvalidParameter: the message says how much a prompt holds at once, and the pool.
    """
    pool, block = config.cache_config.num_gpu_blocks, config.cache_config.block_size
    if not offer.goes_on or not pool:
        return
    blocks = pool // config.parallel_config.data_parallel_size - 1  # one is nobody's
    if plan.policy is not None:
        boundaries = Rooms((room_of(plan.policy),), block).own(plan.length)
        plan = plan._replace(boundaries={0: boundaries}) if boundaries.every.tokens else plan
    held = plan.most(0, prompt + 1, config.max_concurrent_batches)
    if held > blocks * block:
        raise InvalidParameter(
            f"this prompt of {prompt} tokens holds {held} tokens at once under "
            f"{plan.policy or 'foveate_policy=full'}, and the pool {blocks * block}. Choose a "
            "policy that compresses while it reads (when=over_budget(every=256,reading=true)), or "
            "a smaller budget."
        )
