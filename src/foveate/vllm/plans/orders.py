"""Orders that the scheduler sends to workers with each step: plans of the requests that begin in
it, and the blocks that it has freed.

Workers never derive these themselves. They may meet requests in another order than the scheduler,
or have another configuration; if the two disagreed, a request would read blocks that belong to
another request by then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from foveate.vllm.plans.boundaries import Move
from foveate.vllm.plans.plans import Plan

_FIELD = "foveate_orders"


class Orders(NamedTuple):
    """Orders of one step, most of them by request.

    ``begin``: plans of the requests that begin in it, new or preempted. ``first_blocks``: the first
    block not freed in each compressed KV cache group, for these requests and for those with freed
    blocks. ``starts``: number of the snapshot that a request starts from, if another request has
    left its beginning compressed. ``saves``: numbers of the snapshots to make after the step.
    ``drops``: snapshots that are no longer needed. ``moves``: moves of kept pairs by KV cache
    group; workers make no others. ``goes_on``: requests of ``begin`` whose prompt goes on after an
    answer (streamed input): they keep their pairs and their state.
    """

    begin: Mapping[str, Plan] = {}
    first_blocks: Mapping[str, Mapping[int, int]] = {}
    starts: Mapping[str, int] = {}
    saves: Mapping[str, int] = {}
    drops: Sequence[int] = ()
    moves: Mapping[str, Mapping[int, Move]] = {}
    goes_on: Collection[str] = ()

    def send(self, output: Any) -> None:
        """Attach the orders to vLLM's ``SchedulerOutput``, which reaches every worker unchanged."""
        setattr(output, _FIELD, self)

    @classmethod
    def sent(cls, output: Any) -> Orders:
        """Return the orders of a step; empty orders if another scheduler made it."""
        orders: Orders = getattr(output, _FIELD, cls())
        return orders


def computed_tokens(output: Any) -> dict[str, int]:
    """Return the number of tokens that each request had computed before this step, by request."""
    old = output.scheduled_cached_reqs
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    return computed | dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
