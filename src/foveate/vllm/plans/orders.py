"""Orders that the scheduler sends to workers with each step: what becomes of the prompts that begin
in it, and which blocks it holds for requests no longer.

Workers derive neither again. They may meet requests in another order than the scheduler did, and
know other configurations of a model; two answers to one question would let a request read blocks
that are another's by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foveate.vllm.plans.boundaries import Move
from foveate.vllm.plans.plans import Plan

_FIELD = "foveate_orders"


class Orders(NamedTuple):
    """Orders of one step. ``begin`` are the plans of the requests that begin in it, new ones and
    preempted ones; ``holds`` says of these, and of requests of which the scheduler has freed
    blocks, the first block that it holds in each KV cache group under policies. Of those that begin
    behind what another request has left compressed, ``starts`` is the number of its snapshot.
    ``saves`` are the numbers of snapshots to be made of requests after the step, and ``drops``
    those that nobody needs any more. ``moves`` are the step's moves of kept pairs, by request and
    KV cache group; workers make no other.
    """

    begin: Mapping[str, Plan] = {}
    holds: Mapping[str, Mapping[int, int]] = {}
    starts: Mapping[str, int] = {}
    saves: Mapping[str, int] = {}
    drops: Sequence[int] = ()
    moves: Mapping[str, Mapping[int, Move]] = {}

    def send(self, output: Any) -> None:
        """Add the orders to vLLM's ``SchedulerOutput``, which reaches every worker as it is."""
        setattr(output, _FIELD, self)

    @classmethod
    def sent(cls, output: Any) -> Orders:
        """Return the orders that came with a step; none if another scheduler made it."""
        orders: Orders = getattr(output, _FIELD, cls())
        return orders


def computed_tokens(output: Any) -> dict[str, int]:
    """Return how many tokens each request of a ``SchedulerOutput`` has computed before its step."""
    old = output.scheduled_cached_reqs
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    return computed | dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
