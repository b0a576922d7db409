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

from foveate.vllm.plans.moves import Move, Replacement
from foveate.vllm.plans.plans import Plan


class DecidedMove(NamedTuple):
    """A move of the step that vLLM allocates blocks for, with the places of the blocks that other
    requests find by their name, and those of them that need another block.
    """

    move: Move
    named: list[int]
    replaced: list[int]


class Replacing:
    """Mixin for vLLM's manager of a KV cache group: decides the moves of each step, and replaces
    shared blocks that a move would write to.

    A block that another request reads as well has to be replaced. One that merely has a name is
    replaced if the pool has room, and else loses its name.
    """

    plans: Mapping[str, Plan]
    groups: int = 1  # that share the pool
    block_size: int  # these are vLLM's
    block_pool: Any
    kv_cache_group_id: int
    req_to_blocks: Any

    @cached_property
    def _decided(self) -> dict[str, DecidedMove]:
        """Moves by request, until vLLM has allocated the blocks of the step."""
        return {}

    @cached_property
    def _read(self) -> dict[str, list[tuple[int, Any]]]:
        """Blocks that steps in flight read, with the boundary at which they were replaced."""
        return {}

    @cached_property
    def _moves(self) -> dict[str, Move]:
        """Moves by request, from the allocation of their blocks until the step is sent."""
        return {}

    def take_moves(self) -> dict[str, Move]:
        """Return the moves decided since the last call, by request."""
        taken = dict(self._moves)
        self._moves.clear()
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
        """Return vLLM's number, and one more for each block that the step's move replaces."""
        plain = super().get_num_blocks_to_allocate  # type: ignore[misc]
        computed = (total_computed_tokens, num_local_computed_tokens, num_tokens_main_model)
        needed = int(
            plain(request_id, num_tokens, new_computed_blocks, *computed, *more, **options)
        )
        self._decided.pop(request_id, None)
        plan = self.plans.get(request_id)
        if plan is None or options.get("apply_admission_cap"):
            return needed
        step = (total_computed_tokens, num_tokens_main_model)
        if (move := plan.move(self.kv_cache_group_id, *step, self.block_size)) is None:
            return needed
        mine = self.req_to_blocks.get(request_id, ())
        blocks = [*mine, *new_computed_blocks]
        named = [place for place in range(move.first, len(blocks)) if blocks[place].block_hash]
        replaced, free = named, self.block_pool.get_num_free_blocks()
        if self.groups * (needed + len(named)) > free:  # all groups need as many
            readers = 1 if mine else 0  # this request itself
            replaced = [place for place in named if blocks[place].ref_cnt > readers]
        self._decided[request_id] = DecidedMove(move, named, replaced)
        return needed + len(replaced)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> Any:
        """Return vLLM's new blocks; those that replace others are not among them."""
        plain = super().allocate_new_blocks  # type: ignore[misc]
        new = plain(request_id, num_tokens, num_tokens_main_model)
        if (decided := self._decided.pop(request_id, None)) is not None:
            replaced = {place: self._replace(request_id, place, decided) for place in decided.named}
            self._moves[request_id] = decided.move._replace(replaced=replaced)
        return new

    def _replace(self, request_id: str, place: int, decided: DecidedMove) -> Replacement:
        """Make the block at that place of a request's table one that no other request reads."""
        blocks = self.req_to_blocks[request_id]
        before = blocks[place]
        if place in decided.replaced:
            (blocks[place],) = self.block_pool.get_new_blocks(1)
            self._read.setdefault(request_id, []).append((decided.move.end, before))
        else:
            self.block_pool._maybe_evict_cached_block(before)
        return Replacement(before.block_id, blocks[place].block_id)

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
        self._decided.pop(request_id, None)
        self._moves.pop(request_id, None)
        return [*read, *plain(request_id)]
