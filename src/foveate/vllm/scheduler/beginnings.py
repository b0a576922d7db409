"""Beginnings of prompts that the pool has compressed, for other prompts that begin alike.

**Declared contexts.** What is kept of one stays in its request's own blocks, which are never
written to again; others that declare the same context read these blocks.

**Boundaries.** Where prompts are compressed while they are read, what is kept at a boundary within
them follows from the tokens before it, the images, the adapter and the salt, all of which vLLM's
hash of the block that ends there knows, and from the policy and its budget in whole blocks: prompts
of any length that agree in these keep the same. So a prompt starts at the last boundary that it has
in common with another. After the step that ends at a boundary the kept pairs are copied into free
blocks of the pool, and a request that begins alike gets a copy of these: vLLM copies blocks before
a step runs (``kv_cache_block_copies``). So every request writes to its own blocks alone. The copies
stay free blocks, which the pool hands on in the order in which it uses cached ones; no request
waits for them. The rest, the pairs' positions and the sums of a running score, is a snapshot that
each worker holds (``snapshots``). Both are of one request and have one number: where rounding made
another one keep other pairs, nothing is mixed up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.plans import Plan
from foveate.vllm.scheduler.blocks import CompressedManager
from foveate.vllm.vllm_api import KVCacheBlockCopy, make_block_hash_with_group_id


class Beginning(NamedTuple):
    """The first ``tokens`` of a prompt, compressed: the ``blocks`` of each KV cache group that hold
    the kept pairs, and their ``names``, which they have until the pool hands them on. ``number`` is
    that of the workers' snapshot, if there is one.
    """

    tokens: int
    number: int
    blocks: Sequence[Sequence[Any]]
    names: Sequence[Any]

    @property
    def is_whole(self) -> bool:
        """Whether the pool has handed none of the blocks on."""
        return [block.block_hash for group in self.blocks for block in group] == self.names


class Beginnings:
    """The compressed beginnings in the pool. ``most`` is how many blocks all of them may have
    together, and so bounds what workers hold of them: the least recently used one goes first.
    """

    def __init__(self, managers: Sequence[CompressedManager], pool: Any, most: int):
        self._managers, self._pool, self._most = managers, pool, most
        self._shared: OrderedDict[bytes, Beginning] = OrderedDict()
        self._awaited: dict[bytes, Beginning] = {}  # workers compress them in this moment
        self._saved: dict[int, int] = {}  # sources of the next step's copies, by their targets
        self._dropped: list[int] = []
        self._last = 0

    def longest(self, request: Any, plan: Plan, most: int) -> Beginning | None:
        """Return the longest one that a request may start behind, of up to ``most`` tokens."""
        for tokens in _places(plan, most):
            key = self._key(request, plan, tokens)
            if key not in self._shared:
                continue
            if (beginning := self._shared[key]).is_whole:
                self._shared.move_to_end(key)
                for blocks in beginning.blocks:  # the last to be handed on
                    self._pool.touch(blocks)
                    self._pool.free_blocks(blocks)
                return beginning
            self._forget(key)
        return None

    def share_context(self, request: Any, plan: Plan) -> None:
        """Let others start behind a context that has just been compressed."""
        key = self._key(request, plan, plan.length)
        if key not in self._shared or not self._shared[key].is_whole:
            self._shared[key] = self._named(plan.length, self._kept(request, plan, plan.length))
            self._bound()

    def take_copies(self, starts: Mapping[str, Beginning]) -> list[KVCacheBlockCopy]:
        """Return the blocks to be copied before a step: those of the step before, and those of the
        requests that start in it.

        vLLM reads all sources before it writes any target.
        """
        saved, self._saved = self._saved, {}
        copies = dict(saved)  # one source a target: the last request that was given the block
        for name, beginning in starts.items():
            for manager, blocks in zip(self._managers, beginning.blocks, strict=True):
                end = beginning.tokens // manager.block_size
                mine = manager.req_to_blocks[name][end - len(blocks) : end]
                for target, source in zip(mine, blocks, strict=True):
                    copies[target.block_id] = saved.get(source.block_id, source.block_id)
        return [KVCacheBlockCopy(source, target) for target, source in copies.items()]

    def save(self, request: Any, plan: Plan, tokens: int) -> int | None:
        """Have the pairs copied that the step that was just scheduled keeps of a request, at a
        boundary of ``tokens``.

        Returns:
            The number of the snapshot that workers make after the step; None if others share that
            beginning already, or never can, or if the pool has no room for the copy.
        """
        if tokens >= plan.length or _boundaries(plan) is None:
            return None
        key = self._key(request, plan, tokens)
        if key in self._shared or key in self._awaited:
            return None
        kept = self._kept(request, plan, tokens)
        if sum(map(len, kept)) > self._pool.get_num_free_blocks():
            return None
        copies = [self._pool.get_new_blocks(len(blocks)) for blocks in kept]
        self._awaited[key] = self._named(tokens, copies)
        for blocks, targets in zip(kept, copies, strict=True):
            self._saved |= {t.block_id: b.block_id for t, b in zip(targets, blocks, strict=True)}
            self._pool.free_blocks(targets)
        return self._last

    def _kept(self, request: Any, plan: Plan, tokens: int) -> list[list[Any]]:
        """Return the blocks of what a request keeps at a boundary, by KV cache group."""
        return [
            manager.req_to_blocks[request.request_id][
                manager.gap(plan, tokens) : tokens // manager.block_size
            ]
            for manager in self._managers
        ]

    def _named(self, tokens: int, blocks: Sequence[Sequence[Any]]) -> Beginning:
        """Return the beginning in these blocks; those that nobody finds by a name get one."""
        self._last += 1
        said = sha256(f"foveate {self._last}".encode()).digest()
        for manager, group in zip(self._managers, blocks, strict=True):
            name = make_block_hash_with_group_id(said, manager.kv_cache_group_id)
            for block in group:
                if block.block_hash is None:
                    self._pool._insert_block_hash(name, block, num_tokens=tokens)
        names = [block.block_hash for group in blocks for block in group]
        return Beginning(tokens, self._last, blocks, names)

    def settle(self, number: int, *, failed: bool) -> None:
        """Let others start behind what a step has compressed, unless it ``failed``."""
        key = next(key for key, one in self._awaited.items() if one.number == number)
        self._shared[key] = self._awaited.pop(key)
        if failed:
            self._forget(key)
        self._bound()

    def _bound(self) -> None:
        while sum(len(one.names) for one in self._shared.values()) > self._most:
            self._forget(next(iter(self._shared)))

    def take_dropped(self) -> tuple[int, ...]:
        """Return the snapshots that workers need no longer, since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _forget(self, key: bytes) -> None:
        self._dropped.append(self._shared.pop(key).number)

    def _key(self, request: Any, plan: Plan, tokens: int) -> bytes:
        """Return what distinguishes a beginning from all others."""
        boundaries = _boundaries(plan)
        kept = boundaries and boundaries.within
        said = f"foveate {plan.policy} {kept} {tokens} ".encode()
        place = tokens // self._pool.hash_block_size - 1
        return sha256(said + request.block_hashes[place]).digest()


def _boundaries(plan: Plan) -> Boundaries | None:
    """Return the boundaries of a prompt that is compressed while it is read, if all groups have the
    same.
    """
    each = set(plan.boundaries.values())
    one = each.pop() if len(each) == 1 else None
    return one if one is not None and one.every.reading else None


def _places(plan: Plan, most: int) -> Iterator[int]:
    """Yield after how many tokens a request may begin, the most first: after its context, or at a
    boundary if it then reads all tokens whose queries its next one needs.
    """
    if plan.context and 0 < plan.length <= most:
        yield plan.length
    boundaries, policy = _boundaries(plan), plan.policy
    if boundaries is None or policy is None:
        return
    for tokens in boundaries.boundaries_within(most):
        if (following := boundaries.after(tokens)) is None:
            return
        if following - tokens >= policy.score.queries(boundaries.kept_at(following)):
            yield tokens
