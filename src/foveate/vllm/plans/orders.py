"""What the scheduler tells workers with each step: what becomes of the prompts that begin in it,
and which blocks it holds for requests no longer.

Workers derive neither again. They may meet requests in another order than the scheduler did, and
know other configurations of a model; two answers to one question would let a request read blocks
that are another's by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foveate.policies.amount import Amount
from foveate.vllm.plans.moves import Move
from foveate.vllm.plans.plans import Plan
from foveate.vllm.plans.shares import Share

_FIELD = "foveate_orders"


class Order(NamedTuple):
    """Of a prompt of ``prompt`` tokens the first ``length`` are compressed, by the engine's policy
    with the number ``chosen`` at that ``amount``, which reads as ``spec``; ``shares`` is what each
    KV cache group under policies keeps, by its number. Without shares all is kept. No more than
    ``end`` tokens are ever computed, and what would be kept at the last of them is read by none.
    """

    prompt: int
    length: int
    chosen: int | None = None
    amount: Amount | None = None
    spec: str = ""
    shares: Mapping[int, Share] = {}
    end: int | None = None

    @classmethod
    def of(cls, plan: Plan, prompt: int) -> Order:
        """Return the order that follows from a plan, for a prompt of that many tokens."""
        if plan.policy is None:
            return cls(prompt, plan.length)
        policy, shares = plan.policy, dict(plan.shares)
        return cls(prompt, plan.length, plan.chosen, policy.amount, str(policy), shares, plan.end)


class Orders(NamedTuple):
    """With one step: those of the requests that ``begin`` in it, new ones and preempted ones; and
    of these, and of requests of which the scheduler has freed blocks, the first block that it
    ``holds`` in each KV cache group under policies. Of those that begin behind what another request
    has left compressed, ``starts`` is the number of its snapshot. ``saves`` are the numbers of
    snapshots to be made of requests after the step, and ``drops`` those that nobody needs any more.
    ``moves`` are the step's moves of kept pairs, by request and KV cache group; workers make no
    other.
    """

    begin: Mapping[str, Order] = {}
    holds: Mapping[str, Mapping[int, int]] = {}
    starts: Mapping[str, int] = {}
    saves: Mapping[str, int] = {}
    drops: Sequence[int] = ()
    moves: Mapping[str, Mapping[int, Move]] = {}

    def send(self, output: Any) -> None:
        """With vLLM's ``SchedulerOutput``, which reaches every worker as it is."""
        setattr(output, _FIELD, self)

    @classmethod
    def sent(cls, output: Any) -> Orders:
        """Those that came with a step; none if another scheduler made it."""
        orders: Orders = getattr(output, _FIELD, cls())
        return orders
