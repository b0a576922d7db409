"""Blocks that others may read, and that a request is about to write to: it gets others instead.

What a request keeps at a boundary within its prompt may be read by requests that begin alike
(``beginnings``), and so has to stay as it is, wherever the next boundary's pairs go. So where a
step ends at a boundary whose pairs move into such blocks, the scheduler puts new ones in their
place. The step reads the old ones, compresses, and writes the new ones: nothing is copied. vLLM's
tables in the workers are not told; the workers' own books are (``held``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from foveate.backends.vllm.plans import Plan


class Replacement(NamedTuple):
    """The numbers of the block that a step reads at a place of a request's table, and of the one
    that it writes to there, which is read from then on. They are equal where the block is the
    request's own again.
    """

    before: int
    after: int


class Replacing:
    """Before vLLM's manager of a KV cache group: of what is shared nothing is ever written to.

    A block that another request reads as well has to be replaced. One that merely has a name is
    where there is room for that; else it loses its name.
    """

    plans: Mapping[str, Plan]
    groups: int = 1  # that share the pool
    block_size: int  # these are vLLM's
    block_pool: Any
    kv_cache_group_id: int
    req_to_blocks: Any

    @cached_property
    def _replaceable(self) -> dict[str, list[int]]:
        """Places of which it has been decided, by request, as long as vLLM allocates for it."""
        return {}

    @cached_property
    def _read(self) -> dict[str, list[tuple[int, Any]]]:
        """Blocks that steps in flight read, with the boundary at which they were replaced."""
        return {}

    @cached_property
    def _replacements(self) -> dict[str, dict[int, Replacement]]:
        return {}

    def take_replacements(self) -> dict[str, dict[int, Replacement]]:
        """Those of each request, by place, since this was asked last."""
        taken = dict(self._replacements)
        self._replacements.clear()
        return taken

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Any],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        *more: Any,
        **options: Any,
    ) -> int:
        """VLLM's, and one more for each block that is to be replaced."""
        plain = super().get_num_blocks_to_allocate  # type: ignore[misc]
        computed = (total_computed_tokens, num_local_computed_tokens, num_tokens_main_model)
        needed = int(
            plain(request_id, num_tokens, new_computed_blocks, *computed, *more, **options)
        )
        self._replaceable.pop(request_id, None)
        if options.get("apply_admission_cap"):
            return needed
        mine = self.req_to_blocks.get(request_id, ())
        blocks = [*mine, *new_computed_blocks]
        places = self._written(request_id, blocks, num_tokens_main_model)
        free = self.block_pool.get_num_free_blocks()
        if self.groups * (needed + len(places)) > free:  # all groups need as many
            read = 1 if mine else 0  # by this request itself
            places = [place for place in places if blocks[place].ref_cnt > read]
        self._replaceable[request_id] = places
        return needed + len(places)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> Any:
        """VLLM's; blocks that take the place of others are none of those that it returns."""
        plain = super().allocate_new_blocks  # type: ignore[misc]
        new = plain(request_id, num_tokens, num_tokens_main_model)
        blocks, places = self.req_to_blocks[request_id], self._replaceable.pop(request_id, ())
        for place in self._written(request_id, blocks, num_tokens_main_model):
            before = blocks[place]
            if place in places:
                (blocks[place],) = self.block_pool.get_new_blocks(1)
                self._read.setdefault(request_id, []).append((num_tokens_main_model, before))
            else:
                self.block_pool._maybe_evict_cached_block(before)
            numbers = Replacement(before.block_id, blocks[place].block_id)
            self._replacements.setdefault(request_id, {})[place] = numbers
        return new

    def _written(self, request_id: str, blocks: Sequence[Any], end: int) -> list[int]:
        """The places of named blocks that a step writes to which ends after so many tokens."""
        plan = self.plans.get(request_id)
        boundaries = plan.boundaries(self.kv_cache_group_id) if plan and plan.goes_on else None
        if boundaries is None or boundaries.after(end - 1) != end:
            return []
        first = boundaries.gap(end, self.block_size)
        if first == boundaries.gap(end - 1, self.block_size):
            return []  # nothing moves
        return [place for place in range(first, len(blocks)) if blocks[place].block_hash]

    def let_go(self, request_id: str, processed: int) -> None:
        """Gives those back that were replaced at one of the first ``processed`` tokens."""
        read = self._read.get(request_id, ())
        free = [block for end, block in read if end <= processed]
        if free:
            self._read[request_id] = [one for one in read if one[0] > processed]
            self.block_pool.free_blocks(reversed(free))

    def pop_blocks_for_free(self, request_id: str) -> list[Any]:
        """VLLM's, and those that steps in flight may still read."""
        plain = super().pop_blocks_for_free  # type: ignore[misc]
        read = [block for _, block in self._read.pop(request_id, ())]
        self._replaceable.pop(request_id, None)
        self._replacements.pop(request_id, None)
        return [*read, *plain(request_id)]
