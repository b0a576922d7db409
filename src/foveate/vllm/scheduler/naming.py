"""Names of compressed blocks, by which vLLM's prefix cache finds them for other requests: those of
declared contexts, and of what begins alike (``beginnings``).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from foveate.vllm.plans.plans import Plan
from foveate.vllm.vllm_api import make_block_hash_with_group_id


class BlockName(NamedTuple):
    """The ``name`` by which others find a compressed block, and its ``place`` in its request."""

    place: int
    name: bytes


class Naming:
    """Before vLLM's manager of a KV cache group."""

    block_size: int  # these are vLLM's
    block_pool: Any
    kv_cache_group_id: int
    req_to_blocks: Any
    _null_block: Any

    def compressed_context(self, hashes: Sequence[bytes], plan: Plan) -> list[Any] | None:
        """The blocks of a compressed context that another request has left; None if any is gone.

        ``hashes`` are those of the request's blocks, each of all tokens up to its end.
        """
        return self.named(self._context_names(hashes, plan))

    def remember_context(self, request_id: str, hashes: Sequence[bytes], plan: Plan) -> None:
        """Names the blocks of a context by it and by the policy.

        Only when they have been compressed: nobody may read them before.
        """
        self.name(request_id, self._context_names(hashes, plan))

    def _context_names(self, hashes: Sequence[bytes], plan: Plan) -> list[BlockName]:
        """The blocks that a context stays in, and their names; where it stays whole, vLLM's own."""
        size, gap = self.block_pool.hash_block_size, plan.gap(self.kv_cache_group_id)
        whole = hashes[plan.length // size - 1]

        def name(place: int) -> bytes:
            said = f"foveate {plan.policy} {plan.length} {place} ".encode()
            plain = hashes[(place + 1) * self.block_size // size - 1]
            return sha256(said + whole).digest() if gap else plain

        places = range(gap, plan.length // self.block_size)
        return [BlockName(place, name(place)) for place in places]

    def named(self, names: Sequence[BlockName]) -> list[Any] | None:
        """The blocks of these names, which follow each other, with the gap in front of them; None
        if any is gone.
        """
        held: list[Any] = [self._null_block] * names[0].place
        for _, name in names:
            blocks = self.block_pool.get_cached_block(name, [self.kv_cache_group_id])
            if blocks is None:
                return None
            held += blocks
        return held

    def name(self, request_id: str, names: Sequence[BlockName]) -> None:
        """Names blocks of a request, which are never written to again under that name."""
        blocks = self.req_to_blocks[request_id]
        for place, name in names:
            block = blocks[place]
            if block.is_null or block.block_hash is not None:
                continue  # it came with that name
            known = make_block_hash_with_group_id(name, self.kv_cache_group_id)
            end = (place + 1) * self.block_size
            self.block_pool._insert_block_hash(known, block, num_tokens=end)
