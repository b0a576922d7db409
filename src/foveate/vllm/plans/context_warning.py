"""Warnings for the server's log about declared contexts that are too short to free a block."""

from __future__ import annotations

from bisect import bisect_left

from foveate.vllm.plans.gap import ProtectedTokens, Room
from foveate.vllm.plans.plans import Plan


def warning_of(plan: Plan, block: int, longest: int) -> str:
    """Return a warning that nothing of a declared context is compressed, with the shortest length
    that would be; an empty string if some of it is compressed.

    Args:
        plan: plan of the request, with the context's length as it was declared.
        block: tokens of a block.
        longest: tokens of the longest prompt (``--max-model-len``).
    """
    if not plan.context or plan.policy is None or plan.policy.amount.everything:
        return ""
    room = Room.of(plan.policy.amount, ProtectedTokens.of(plan.policy.select).tokens)
    if room.gap(plan.length // block * block, block):
        return ""
    least = shortest(room, block, longest)
    enough = f"from {least} tokens on" if least else f"at no length up to --max-model-len {longest}"
    return (
        f"foveate_context={plan.length} is too short: {plan.policy} frees a block of {block} "
        f"tokens {enough}. It is kept whole; smaller blocks (--block-size) free more."
    )


def shortest(room: Room, block: int, longest: int) -> int | None:
    """Return the tokens of the shortest context, in whole blocks, that frees a block; None if no
    length up to ``longest`` does. Longer contexts never free less, so a bisection finds it.
    """
    ends = range(block, longest + 1, block)
    first = bisect_left(ends, 1, key=lambda end: room.gap(end, block))
    return ends[first] if first < len(ends) else None
