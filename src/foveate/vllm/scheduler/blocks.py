"""The scheduler's side: a KV cache group under policies, and what its blocks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from foveate.errors import UnsupportedEngine
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.plans import Plan
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.vllm_api import FullAttentionManager, FullAttentionSpec, KVCacheSpec, KVQuantMode


@dataclass(frozen=True, kw_only=True)
class CompressedSpec(FullAttentionSpec):
    """Full attention over prompts of which the ``rooms`` stay, one for each of the engine's
    policies. One KV cache group has the same of them.
    """

    rooms: tuple[Room, ...]

    @classmethod
    def of(cls, spec: FullAttentionSpec, rooms: tuple[Room, ...], **changes: Any) -> CompressedSpec:
        """Return the same cache under policies, with these ``changes`` of other fields."""
        plain = {f.name: getattr(spec, f.name) for f in fields(spec) if f.init}
        return cls(**plain | changes, rooms=rooms)

    @classmethod
    def merge(cls, specs: list[Any]) -> CompressedSpec:
        """Return the spec of a group of layers; they share their rooms.

        Raises:
            AssertionError: they do not, or some are under no policy.
        """
        rooms = {spec.rooms if isinstance(spec, cls) else None for spec in specs}
        mine = rooms.pop()
        if rooms or mine is None:  # of this type, as vLLM tries which specs can be merged
            raise AssertionError("layers of different rooms are not one KV cache group")
        return cls.of(FullAttentionSpec.merge([_plain(spec) for spec in specs]), mine)

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Whether all these layers can be one group: all under policies, with the same rooms."""
        return all(
            isinstance(spec, CompressedSpec) and spec.rooms == self.rooms
            for spec in kv_cache_specs.values()
        )

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Of the longest prompt, under the engine's own policy. Where that compresses while it
        reads, this is less than the prompt takes; requests that need more are refused one by one.
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
    """Gives the blocks of a prompt's gap back to the pool, once they can be read no more.

    Blocks are shared between requests as vLLM shares them, but for those that a compressed prompt
    stays in: the gap's blocks alone are remembered by what they hold, and no request is given more
    of another's than its own gap, so that nobody ever writes to a block that somebody else reads.

    ``plans`` are the scheduler's, of all its requests, and so is ``freed``, which names those of
    which a block was freed before they ended, until the workers have been told. ``ahead`` is how
    many steps may be on their way at once.
    """

    plans: Mapping[str, Plan] = {}
    ahead: int = 1

    @cached_property
    def freed(self) -> set[str]:
        return set()

    @cached_property
    def rooms(self) -> Rooms:
        """What this group keeps of prompts."""
        return Rooms(self.kv_cache_spec.rooms, self.block_size)

    def gap(self, plan: Plan, tokens: int) -> int:
        """Return how many of its first blocks a request holds no longer after so many tokens."""
        boundaries = plan.boundaries.get(self.kv_cache_group_id)
        return 0 if boundaries is None else boundaries.gap(tokens, self.block_size)

    def null_gap(self, plan: Plan, tokens: int) -> list[Any]:
        """Return the null blocks in front of a request that starts at a boundary."""
        return [self._null_block] * self.gap(plan, tokens)

    def holds(self, request_id: str) -> int:
        """Return the first block of a request that is held; all before it are anybody's."""
        blocks = self.req_to_blocks.get(request_id, ())
        return next((i for i, block in enumerate(blocks) if not block.is_null), len(blocks))

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Free the blocks of the gap before a step; ``processed_computed_tokens`` counts no token
        in flight.
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
        """VLLM's. Where it asks whether all of a prompt will fit, that is as much as is held at
        once, behind the gap with which it starts.
        """
        if options.get("apply_admission_cap") and request_id in self.plans:
            gap = sum(block.is_null for block in new_computed_blocks) * self.block_size
            num_tokens = min(num_tokens, gap + self.peak(self.plans[request_id], num_tokens))
        plain = super().get_num_blocks_to_allocate
        return int(plain(request_id, num_tokens, new_computed_blocks, *args, **options))

    def peak(self, plan: Plan, tokens: int) -> int:
        """Return the most slots that a request holds at once on its way to so many tokens."""
        return plan.peak(self.kv_cache_group_id, tokens, self.ahead)

    def _remove_blocks_in_range(self, request_id: str, first_block: int, last_block: int) -> None:
        blocks = self.req_to_blocks.get(request_id, ())[first_block:last_block]
        if blocks and not blocks[-1].is_null:  # vLLM begins at the last, too
            self.freed.add(request_id)
        super()._remove_blocks_in_range(request_id, first_block, last_block)

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **options: Any) -> None:
        """Remembers full blocks by what they hold, as far as they hold the whole prompt."""
        plan = self.plans.get(request.request_id)
        if plan is not None and plan.key is not None:
            num_tokens = min(num_tokens, plan.cacheable(self.kv_cache_group_id))
        super().cache_blocks(request, num_tokens, *args, **options)

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Any], *args: Any, **options: Any
    ) -> None:
        """vLLM's, with the gap of a compressed context in front: no blocks that could be held."""
        held = [block for block in new_computed_blocks if not block.is_null]
        super().add_local_computed_blocks(request_id, held, *args, **options)
        gap = len(new_computed_blocks) - len(held)
        self.req_to_blocks[request_id][:0] = [self._null_block] * gap
        self.num_cached_block[request_id] += gap


def compressible(spec: KVCacheSpec) -> bool:
    """Whether a layer's cache holds every token: full attention, and no window or chunks."""
    return (
        type(spec) is FullAttentionSpec
        and spec.sliding_window is None
        and spec.attention_chunk_size is None
    )


def holds_compressed(spec: Any) -> bool:
    """Whether a KV cache group has compressed layers. A group of layers of several shapes has a
    spec that lists theirs.
    """
    return any(
        isinstance(each, CompressedSpec)
        for each in (spec, *getattr(spec, "kv_cache_specs", {}).values())
    )


def check_specs(specs: Mapping[str, KVCacheSpec]) -> None:
    """Refuses layers to compress whose pages hold something else than a token's key and value.

    Raises:
        UnsupportedEngine: codes other than FP8 (also where the checkpoint, not a setting, asks for
            them), other things beside the pairs, or values wider than keys.
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
