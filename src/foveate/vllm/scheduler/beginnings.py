"""Compressed beginnings of prompts in the pool, shared with other prompts that begin alike.

**Declared contexts.** The kept pairs of a context stay in its request's own blocks, which are never
written to again; requests that declare the same context read these blocks.

**Boundaries.** If prompts are compressed while they are read, the pairs kept at a boundary within
them follow from the tokens before it, the images, the adapter and the salt, which all enter vLLM's
hash of the block that ends there, and from the policy and its budget in whole blocks. Prompts of
any length that agree in these keep the same pairs. So a prompt starts at the last boundary that it
shares with an earlier one. After the step that ends at a boundary the kept pairs are copied into
free blocks of the pool, and a request with the same beginning gets a copy of these: vLLM copies
blocks before a step runs (``kv_cache_block_copies``). So every request writes only to its own
blocks. The copies stay free blocks, which the pool reuses in the same order as cached ones; no
request waits for them. The positions of the pairs and the sums of a running score are in a snapshot
that each worker stores (``snapshots``). Copy and snapshot come from one request and have one
number, so that they match even if rounding made another request keep other pairs.
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
    """The first ``tokens`` of a prompt, compressed: the ``blocks`` with the kept pairs by KV cache
    group, and the hashes of these blocks as ``names``, which change when the pool reuses a block.
    ``number`` is that of the workers' snapshot, if there is one.
    """

    tokens: int
    number: int
    blocks: Sequence[Sequence[Any]]
    names: Sequence[Any]

    @property
    def is_intact(self) -> bool:
        """True if the pool has reused none of the blocks."""
        return [block.block_hash for group in self.blocks for block in group] == self.names


class Beginnings:
    """Compressed beginnings in the pool. ``limit`` is the number of blocks that all of them may
    have together, which also bounds the workers' snapshots; the least recently used goes first.
    """

    def __init__(self, managers: Sequence[CompressedManager], pool: Any, limit: int):
        self._managers, self._pool, self._limit = managers, pool, limit
        self._shared: OrderedDict[bytes, Beginning] = OrderedDict()
        self._awaited: dict[bytes, Beginning] = {}  # workers are compressing these
        self._saved: dict[int, int] = {}  # sources of the next step's copies, by target
        self._dropped: list[int] = []
        self._last = 0

    def longest(self, request: Any, plan: Plan, limit: int) -> Beginning | None:
        """Return the longest beginning, of up to ``limit`` tokens, that a request may reuse."""
        for tokens in _starting_points(plan, limit):
            key = self.key(request, plan, tokens)
            if key not in self._shared:
                continue
            if (beginning := self._shared[key]).is_intact:
                self._shared.move_to_end(key)
                for blocks in beginning.blocks:  # move them to the end of the queue for reuse
                    self._pool.touch(blocks)
                    self._pool.free_blocks(blocks)
                return beginning
            self._forget(key)
        return None

    def share_context(self, request: Any, plan: Plan) -> None:
        """Let other requests start behind a context that has just been compressed."""
        key = self.key(request, plan, plan.length)
        if key not in self._shared or not self._shared[key].is_intact:
            self._shared[key] = self._named(plan.length, self.kept(request, plan, plan.length))
            self._bound()

    def take_copies(self, starts: Mapping[str, Beginning]) -> list[KVCacheBlockCopy]:
        """Return the block copies that vLLM makes before a step: pairs kept by the step before, and
        beginnings of the requests that start in it (``starts``).

        vLLM reads all sources before it writes any target.
        """
        saved, self._saved = self._saved, {}
        copies = dict(saved)  # one source per target: the last request that received the block wins
        for name, beginning in starts.items():
            for manager, blocks in zip(self._managers, beginning.blocks, strict=True):
                end = beginning.tokens // manager.block_size
                mine = manager.req_to_blocks[name][end - len(blocks) : end]
                for target, source in zip(mine, blocks, strict=True):
                    copies[target.block_id] = saved.get(source.block_id, source.block_id)
        return [KVCacheBlockCopy(source, target) for target, source in copies.items()]

    @property
    def pending_copies(self) -> list[KVCacheBlockCopy]:
        """Copies of kept pairs that the next step makes into free blocks of the pool."""
        return [KVCacheBlockCopy(source, target) for target, source in self._saved.items()]

    @property
    def hash_block_size(self) -> int:
        """Number of tokens behind each of vLLM's block hashes."""
        return int(self._pool.hash_block_size)

    def save(self, request: Any, plan: Plan, tokens: int) -> int | None:
        """Arrange a copy of the pairs that the step just scheduled keeps of a request at the
        boundary after ``tokens``.

        Returns:
            The number of the snapshot that workers make after the step; None if this beginning is
            shared already, or cannot be, or if the pool has no free blocks for the copy.
        """
        if tokens >= plan.length or _boundaries(plan) is None:
            return None
        key = self.key(request, plan, tokens)
        if key in self._shared or key in self._awaited:
            return None
        kept = self.kept(request, plan, tokens)
        if sum(map(len, kept)) > self._pool.get_num_free_blocks():
            return None
        copies = [self._pool.get_new_blocks(len(blocks)) for blocks in kept]
        self._awaited[key] = self._named(tokens, copies)
        for blocks, targets in zip(kept, copies, strict=True):
            self._saved |= {t.block_id: b.block_id for t, b in zip(targets, blocks, strict=True)}
            # free them at once: like cached blocks, they keep their content until they are reused
            self._pool.free_blocks(targets)
        return self._last

    def kept(self, request: Any, plan: Plan, tokens: int) -> list[list[Any]]:
        """Return the blocks of the pairs that a request keeps at a boundary, by KV cache group."""
        return [
            manager.req_to_blocks[request.request_id][
                manager.gap(plan, tokens) : tokens // manager.block_size
            ]
            for manager in self._managers
        ]

    def _named(self, tokens: int, blocks: Sequence[Sequence[Any]]) -> Beginning:
        """Return the beginning in these blocks, and give blocks without a hash a unique one."""
        self._last += 1
        digest = sha256(f"foveate {self._last}".encode()).digest()
        for manager, group in zip(self._managers, blocks, strict=True):
            name = make_block_hash_with_group_id(digest, manager.kv_cache_group_id)
            for block in group:
                if block.block_hash is None:
                    self._pool._insert_block_hash(name, block, num_tokens=tokens)
        names = [block.block_hash for group in blocks for block in group]
        return Beginning(tokens, self._last, blocks, names)

    def settle(self, number: int, *, failed: bool) -> None:
        """Let other requests start behind the beginning that a step has compressed, or drop it if
        that ``failed``.
        """
        key = next(key for key, beginning in self._awaited.items() if beginning.number == number)
        self._shared[key] = self._awaited.pop(key)
        if failed:
            self._forget(key)
        self._bound()

    def _bound(self) -> None:
        while sum(len(beginning.names) for beginning in self._shared.values()) > self._limit:
            self._forget(next(iter(self._shared)))

    def take_dropped(self) -> tuple[int, ...]:
        """Return the numbers of the snapshots dropped since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _forget(self, key: bytes) -> None:
        self._dropped.append(self._shared.pop(key).number)

    def key(self, request: Any, plan: Plan, tokens: int) -> bytes:
        """Return the key of a beginning, which differs whenever kept pairs may differ."""
        boundaries = _boundaries(plan)
        kept = boundaries and boundaries.within
        prefix = f"foveate {plan.policy} {kept} {tokens} ".encode()
        index = tokens // self.hash_block_size - 1
        return sha256(prefix + request.block_hashes[index]).digest()


def _boundaries(plan: Plan) -> Boundaries | None:
    """Return the boundaries of a prompt that is compressed while it is read; None if it is not, or
    if KV cache groups have different boundaries.
    """
    distinct = set(plan.boundaries.values())
    boundaries = distinct.pop() if len(distinct) == 1 else None
    return boundaries if boundaries is not None and boundaries.every.reading else None


def _starting_points(plan: Plan, limit: int) -> Iterator[int]:
    """Yield the token counts after which a request may begin, the largest first: after its context,
    or at a boundary if it then reads all tokens whose queries its next boundary needs.
    """
    if plan.context and 0 < plan.length <= limit:
        yield plan.length
    boundaries, policy = _boundaries(plan), plan.policy
    if boundaries is None or policy is None:
        return
    for tokens in boundaries.boundaries_within(limit):
        if (following := boundaries.after(tokens)) is None:
            return
        if following - tokens >= policy.score.queries(boundaries.kept_at(following)):
            yield tokens
