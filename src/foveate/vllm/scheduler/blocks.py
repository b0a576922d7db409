"""KV cache groups under policies: their spec, and the manager that frees their gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch

from foveate.errors import UnsupportedEngine
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.plans import Plan
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.vllm_api import FullAttentionManager, FullAttentionSpec, KVCacheSpec, KVQuantMode


@dataclass(frozen=True, kw_only=True)
class CompressedSpec(FullAttentionSpec):
    """Full attention over compressed prompts. ``rooms`` has one room for each of the engine's
    policies; all layers of a KV cache group have the same.
    """

    rooms: tuple[Room, ...]

    @classmethod
    def of(cls, spec: FullAttentionSpec, rooms: tuple[Room, ...], **changes: Any) -> CompressedSpec:
        """Return a copy of vLLM's ``spec`` with these ``rooms`` and ``changes`` of other fields."""
        plain = {f.name: getattr(spec, f.name) for f in fields(spec) if f.init}
        return cls(**plain | changes, rooms=rooms)

    @classmethod
    def merge(cls, specs: list[Any]) -> CompressedSpec:
        """Return the spec of a group of layers that share their rooms.

        Raises:
            AssertionError: layers with different rooms, or under no policy. vLLM catches this type
                when it tries which specs can be merged.
        """
        rooms = {spec.rooms if isinstance(spec, cls) else None for spec in specs}
        mine = rooms.pop()
        if rooms or mine is None:
            raise AssertionError("layers of different rooms are not one KV cache group")
        return cls.of(FullAttentionSpec.merge([_plain(spec) for spec in specs]), mine)

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Return True if these layers can form one group: all under policies, with equal rooms."""
        return all(
            isinstance(spec, CompressedSpec) and spec.rooms == self.rooms
            for spec in kv_cache_specs.values()
        )

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes that the longest prompt needs under the engine's own policy.

        A policy that compresses while it reads needs less than the prompt; requests that need more
        than the pool are then refused one by one.
        """
        longest: int = vllm_config.model_config.max_model_len
        boundaries = Rooms(self.rooms[:1], self.block_size).own(longest)
        if not boundaries.every.reading:
            return int(super().max_memory_usage_bytes(vllm_config))
        ahead: int = vllm_config.max_concurrent_batches
        slots = boundaries.peak(longest, ahead)
        return -(-slots // int(self.block_size)) * int(self.page_size_bytes)


def _plain(spec: CompressedSpec) -> FullAttentionSpec:
    return FullAttentionSpec(
        **{f.name: getattr(spec, f.name) for f in fields(FullAttentionSpec) if f.init}
    )


class CompressedManager(FullAttentionManager):
    """Manager that returns the blocks of a prompt's gap to the pool once no step reads them.

    Blocks are shared between requests by vLLM's prefix cache, except those with kept pairs: only
    the gap's blocks are cached by their hash, and no request gets more of another's blocks than its
    own gap covers. So no request ever writes to a block that another one reads.

    ``plans`` (of all requests) and ``freed`` belong to the scheduler. ``freed`` names unfinished
    requests with freed blocks until the workers know. ``ahead`` is the number of steps that may be
    in flight at once.
    """

    plans: Mapping[str, Plan] = {}
    ahead: int = 1

    @cached_property
    def freed(self) -> set[str]:
        return set()

    @cached_property
    def rooms(self) -> Rooms:
        """Rooms of this group, by policy."""
        return Rooms(self.kv_cache_spec.rooms, self.block_size)

    def gap(self, plan: Plan, tokens: int) -> int:
        """Return the number of first blocks that a request has freed after so many tokens."""
        boundaries = plan.boundaries.get(self.kv_cache_group_id)
        return 0 if boundaries is None else boundaries.gap(tokens, self.block_size)

    def null_gap(self, plan: Plan, tokens: int) -> list[Any]:
        """Return the null blocks in front of a request that starts at a boundary."""
        return [self._null_block] * self.gap(plan, tokens)

    def first_block(self, request_id: str) -> int:
        """Return the index of a request's first block that is not freed."""
        blocks = self.req_to_blocks.get(request_id, ())
        return next((i for i, block in enumerate(blocks) if not block.is_null), len(blocks))

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Free the blocks of the gap before a step; ``processed_computed_tokens`` excludes tokens
        of steps in flight.
        """
        plan = self.plans.get(request_id)
        if plan is not None and request_id in self.req_to_blocks:
            self._remove_blocks_in_range(request_id, 0, self.gap(plan, processed_computed_tokens))

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Any],
        *args: Any,
        **options: Any,
    ) -> int:
        """Return vLLM's number, except that its check whether a prompt will fit
        (``apply_admission_cap``) counts the peak of slots behind the gap with which it starts.
        """
        if options.get("apply_admission_cap") and request_id in self.plans:
            gap = sum(block.is_null for block in new_computed_blocks) * self.block_size
            num_tokens = min(num_tokens, gap + self.peak(self.plans[request_id], num_tokens))
        plain = super().get_num_blocks_to_allocate
        return int(plain(request_id, num_tokens, new_computed_blocks, *args, **options))

    def peak(self, plan: Plan, tokens: int) -> int:
        """Return the largest number of slots in use at once until so many tokens are processed."""
        return plan.peak(self.kv_cache_group_id, tokens, self.ahead)

    def _remove_blocks_in_range(self, request_id: str, first_block: int, last_block: int) -> None:
        blocks = self.req_to_blocks.get(request_id, ())[first_block:last_block]
        # vLLM frees backwards from the last block, and stops at a null block
        if blocks and not blocks[-1].is_null:
            self.freed.add(request_id)
        super()._remove_blocks_in_range(request_id, first_block, last_block)

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **options: Any) -> None:
        """Cache full blocks by their hash, up to the first slot that a move may write to."""
        plan = self.plans.get(request.request_id)
        if plan is not None and plan.key is not None:
            num_tokens = min(num_tokens, plan.cacheable(self.kv_cache_group_id))
        super().cache_blocks(request, num_tokens, *args, **options)

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Any], *args: Any, **options: Any
    ) -> None:
        """Add cached blocks as vLLM does, with null blocks for a compressed context's gap in
        front, whose references vLLM must not count.
        """
        blocks = [block for block in new_computed_blocks if not block.is_null]
        super().add_local_computed_blocks(request_id, blocks, *args, **options)
        gap = len(new_computed_blocks) - len(blocks)
        self.req_to_blocks[request_id][:0] = [self._null_block] * gap
        self.num_cached_block[request_id] += gap


class OtherGroup(NamedTuple):
    """KV cache group that is not compressed: windows, states, or a draft model's layers. It never
    has more than ``limit`` blocks of ``block`` tokens for one request.
    """

    block: int
    limit: int

    @classmethod
    def of(cls, manager: Any, config: Any) -> OtherGroup:
        """Return the group of one of vLLM's managers. ``config`` is a ``VllmConfig``."""
        spec = manager.kv_cache_spec
        limit = -(-int(spec.max_memory_usage_bytes(config)) // int(spec.page_size_bytes))
        return cls(manager.block_size, limit)

    def blocks(self, tokens: int) -> int:
        """Return the largest number of blocks in use until so many tokens are processed."""
        return min(self.limit, -(-tokens // self.block) + 1)


def compressible(spec: KVCacheSpec) -> bool:
    """Return True if a layer's cache stores every token: full attention, no window or chunks."""
    return (
        type(spec) is FullAttentionSpec
        and spec.sliding_window is None
        and spec.attention_chunk_size is None
    )


def has_compressed(spec: Any) -> bool:
    """Return True if a KV cache group has compressed layers. The spec of a group of layers with
    several shapes lists theirs in ``kv_cache_specs``.
    """
    return any(
        isinstance(each, CompressedSpec)
        for each in (spec, *getattr(spec, "kv_cache_specs", {}).values())
    )


def check_specs(specs: Mapping[str, KVCacheSpec]) -> None:
    """Refuse layers whose pages store more or other things than each token's key and value.

    Raises:
        UnsupportedEngine: codes other than FP8 (also if the checkpoint, not a setting, chooses
            them), extra content beside the pairs, or values of another size than keys.
    """
    for name, spec in specs.items():
        plain = (
            _readable(spec)
            and spec.state_content_bytes is None
            and spec.num_head_slots is None
            and spec.tokens_per_state == 1
            and spec.head_size == spec.head_size_v
        )
        if not plain:
            raise UnsupportedEngine(
                f"the cache of the layer {name} holds something else than a key and a value of "
                f"{spec.head_size} numbers for every token ({spec}). Foveate compresses plain "
                "caches, and FP8 with one scale a layer; start vLLM with --kv-cache-dtype auto or "
                "fp8, and a checkpoint that asks for no other."
            )


def _readable(spec: Any) -> bool:
    coded = spec.kv_quant_mode == KVQuantMode.FP8_PER_TENSOR and spec.dtype == torch.uint8
    return bool(spec.kv_quant_mode == KVQuantMode.NONE or coded)
