"""Names of the blocks that a declared context is compressed into: vLLM's prefix cache finds them by
these for other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from foveate.vllm.plans.plans import Plan
from foveate.vllm.vllm_api import make_block_hash_with_group_id


class Naming:
    """Mixin for vLLM's manager of a KV cache group."""

    block_size: int  # these are vLLM's
    block_pool: Any
    kv_cache_group_id: int
    req_to_blocks: Any
    _null_block: Any

    def compressed_context(self, hashes: Sequence[bytes], plan: Plan) -> list[Any] | None:
        """Return the blocks of a compressed context that another request has left, with the gap in
        front of them; None if any is gone.

        ``hashes`` are those of the request's blocks, each of all tokens up to its end.
        """
        names = self._context_names(hashes, plan)
        found: list[Any] = [self._null_block] * min(names)
        for name in names.values():
            blocks = self.block_pool.get_cached_block(name, [self.kv_cache_group_id])
            if blocks is None:
                return None
            found += blocks
        return found

    def remember_context(self, request_id: str, hashes: Sequence[bytes], plan: Plan) -> None:
        """Name the blocks of a context by it and by the policy; they are never written to again.

        Only when they have been compressed: nobody may read them before.
        """
        blocks = self.req_to_blocks[request_id]
        for place, name in self._context_names(hashes, plan).items():
            block = blocks[place]
            if block.is_null or block.block_hash is not None:
                continue  # it came with that name
            known = make_block_hash_with_group_id(name, self.kv_cache_group_id)
            end = (place + 1) * self.block_size
            self.block_pool._insert_block_hash(known, block, num_tokens=end)

    def _context_names(self, hashes: Sequence[bytes], plan: Plan) -> dict[int, bytes]:
        """Return the names of the blocks that a context stays in, by their index in the request;
        where it stays whole, vLLM's own.
        """
        boundaries = plan.boundaries.get(self.kv_cache_group_id)
        size, gap = self.block_pool.hash_block_size, boundaries.freed if boundaries else 0
        whole = hashes[plan.length // size - 1]

        def name(place: int) -> bytes:
            said = f"foveate {plan.policy} {plan.length} {place} ".encode()
            plain = hashes[(place + 1) * self.block_size // size - 1]
            return sha256(said + whole).digest() if gap else plain

        return {place: name(place) for place in range(gap, plan.length // self.block_size)}
