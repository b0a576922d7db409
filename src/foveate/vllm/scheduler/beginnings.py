"""Prompts that begin alike: one starts at the last boundary that it has in common with another that
was read before, behind what was kept there.

Where prompts are compressed while they are read, what is kept at a boundary within them follows
from the tokens before it, the images, the adapter and the salt, all of which vLLM's hash of the
block that ends there knows, and from the policy and its budget in whole blocks: prompts of any
length that agree in these keep the same. The pairs stay in the pool, in blocks that have a name and
that vLLM hands on when nobody reads them; the rest, the pairs' positions and the sums of a running
score, is a snapshot that each worker holds (``snapshots``). Both are of one request and have one
number: where rounding made another one keep other pairs, nothing is mixed up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.plans import Plan
from foveate.vllm.scheduler.blocks import CompressedManager
from foveate.vllm.scheduler.naming import BlockName


class Beginning(NamedTuple):
    """The first ``tokens`` of a prompt, compressed; ``number`` is that of the workers' snapshot."""

    tokens: int
    number: int


class Beginnings:
    """Those that the pool has. ``most`` is how many blocks all of them may have together, and so
    bounds what workers hold of them: the least recently used one goes first.
    """

    def __init__(self, managers: Sequence[CompressedManager], most: int):
        self._managers, self._most = managers, most
        self._shared: OrderedDict[bytes, Beginning] = OrderedDict()
        self._sizes: dict[int, int] = {}  # blocks, by number
        self._awaited: dict[bytes, Beginning] = {}  # workers compress them in this moment
        self._dropped: list[int] = []
        self._last = 0

    def longest(
        self, request: Any, plan: Plan, most: int
    ) -> tuple[Beginning, tuple[list[Any], ...]] | None:
        """The longest one that a request may start behind, of up to ``most`` tokens, with its
        blocks in each KV cache group; None without any.
        """
        boundaries = _boundaries(plan)
        for tokens in boundaries.begins(most) if boundaries else ():
            key = self._key(request, plan, tokens)
            if key not in self._shared or not _starts(plan, tokens):
                continue
            beginning = self._shared[key]
            blocks = [one.named(_names(one, plan, beginning)) for one in self._managers]
            if all(each is not None for each in blocks):
                self._shared.move_to_end(key)
                return beginning, tuple(each for each in blocks if each is not None)
            self._forget(key)  # the pool has handed one of its blocks on
        return None

    def reached(self, request: Any, plan: Plan, tokens: int) -> int | None:
        """Return the number of the snapshot that workers make of a request after the step that was
        just scheduled, in which it is compressed at a boundary of ``tokens``; None if others share
        that beginning already, or never can. Its blocks are named, as the next step must not write
        to them; nobody can know their names yet.
        """
        if tokens >= plan.length or _boundaries(plan) is None:
            return None
        key = self._key(request, plan, tokens)
        if key in self._shared or key in self._awaited:
            return None
        self._last += 1
        self._awaited[key] = beginning = Beginning(tokens, self._last)
        self._sizes[beginning.number] = 0
        for manager in self._managers:
            names = _names(manager, plan, beginning)
            manager.name(request.request_id, names)
            self._sizes[beginning.number] += len(names)
        return beginning.number

    def settle(self, number: int, *, failed: bool) -> None:
        """Lets others start behind what a step has compressed, unless it ``failed``."""
        key = next(key for key, one in self._awaited.items() if one.number == number)
        self._shared[key] = self._awaited.pop(key)
        if failed:
            self._forget(key)
        while self._shared and sum(self._sizes.values()) > self._most:
            self._forget(next(iter(self._shared)))

    def take_dropped(self) -> tuple[int, ...]:
        """The snapshots that workers need no longer, since this was asked last."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _forget(self, key: bytes) -> None:
        number = self._shared.pop(key).number
        del self._sizes[number]
        self._dropped.append(number)

    def _key(self, request: Any, plan: Plan, tokens: int) -> bytes:
        """What tells a beginning from all others."""
        size, boundaries = self._managers[0].block_pool.hash_block_size, _boundaries(plan)
        kept = boundaries and boundaries.within
        said = f"foveate {plan.policy} {kept} {tokens} ".encode()
        return sha256(said + request.block_hashes[tokens // size - 1]).digest()


def _boundaries(plan: Plan) -> Boundaries | None:
    """Those of a prompt that is compressed while it is read, where all groups have the same."""
    each = {share.boundaries(plan.length) for share in plan.shares.values()}
    one = each.pop() if len(each) == 1 else None
    return one if one is not None and one.every.reading else None


def _starts(plan: Plan, tokens: int) -> bool:
    """Whether a request may begin at that boundary: it has to read all tokens whose queries its
    next one asks for.
    """
    boundaries, policy = _boundaries(plan), plan.policy
    following = boundaries and boundaries.after(tokens)
    if boundaries is None or following is None or policy is None:
        return False
    return following - tokens >= policy.score.queries(boundaries.stays(following))


def _names(manager: CompressedManager, plan: Plan, one: Beginning) -> list[BlockName]:
    """The blocks of a beginning in that KV cache group, and their names."""
    boundaries, size = plan.boundaries(manager.kv_cache_group_id), manager.block_size
    first = 0 if boundaries is None else boundaries.gap(one.tokens, size)
    return [
        BlockName(place, sha256(f"foveate {one.number} {place}".encode()).digest())
        for place in range(first, one.tokens // size)
    ]
