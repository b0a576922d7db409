"""The scheduler's side: a KV cache group under a policy, and what its blocks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from foveate.backends.vllm.gap import Gap, Room, gaps_of
from foveate.backends.vllm.vllm_api import (
    FullAttentionManager,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
)
from foveate.errors import UnsupportedEngine


@dataclass(frozen=True, kw_only=True)
class CompressedSpec(FullAttentionSpec):
    """Full attention over prompts of which ``room`` stays. One KV cache group has one room."""

    room: Room

    @classmethod
    def of(cls, spec: FullAttentionSpec, room: Room) -> CompressedSpec:
        """The same cache, under a policy."""
        return cls(**{f.name: getattr(spec, f.name) for f in fields(spec) if f.init}, room=room)

    @property
    def prefix_cacheable(self) -> bool:
        """False: blocks are overwritten in place, so what they are hashed by is no longer true."""
        return False

    @classmethod
    def merge(cls, specs: list[Any]) -> CompressedSpec:
        """The spec of a group of layers; they share one room.

        Raises:
            AssertionError: they do not, or some are under no policy.
        """
        rooms = {spec.room if isinstance(spec, cls) else None for spec in specs}
        room = rooms.pop()
        if rooms or room is None:  # of this type, as vLLM tries which specs can be merged
            raise AssertionError("layers of different rooms are not one KV cache group")
        return cls.of(FullAttentionSpec.merge([_plain(spec) for spec in specs]), room)

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Whether all these layers can be one group: all under a policy, with the same room."""
        return all(
            isinstance(spec, CompressedSpec) and spec.room == self.room
            for spec in kv_cache_specs.values()
        )


def _plain(spec: CompressedSpec) -> FullAttentionSpec:
    return FullAttentionSpec(
        **{f.name: getattr(spec, f.name) for f in fields(FullAttentionSpec) if f.init}
    )


class CompressedManager(FullAttentionManager):
    """Gives the blocks of a prompt's gap back to the pool, once they can be read no more."""

    @cached_property
    def gap(self) -> Callable[[int], Gap]:
        """A prompt's gap, given its length."""
        return gaps_of(self.kv_cache_spec.room, self.block_size)

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Called before every step; ``processed_computed_tokens`` counts no token in flight."""
        if num_prompt_tokens is None or processed_computed_tokens < num_prompt_tokens:
            return
        gap = self.gap(num_prompt_tokens)
        self._remove_blocks_in_range(request_id, gap.first, gap.last)


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
        UnsupportedEngine: codes (also where the checkpoint, not a setting, asks for them), other
            things beside the pairs, or values wider than keys.
    """
    for name, spec in specs.items():
        plain = (
            spec.kv_quant_mode == KVQuantMode.NONE
            and spec.state_content_bytes is None
            and spec.num_head_slots is None
            and spec.tokens_per_state == 1
            and spec.head_size == spec.head_size_v
        )
        if not plain:
            raise UnsupportedEngine(
                f"the cache of the layer {name} holds something else than a key and a value of "
                f"{spec.head_size} numbers for every token ({spec}). Foveate compresses plain "
                "caches alone; for quantised ones start vLLM with --kv-cache-dtype auto and a "
                "checkpoint that asks for none."
            )
