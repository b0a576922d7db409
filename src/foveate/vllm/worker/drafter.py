"""A drafter's own layers, whose cache stays whole beside the compressed one of the model."""

from __future__ import annotations

from copy import copy
from typing import Any


def drafter_layers(runner: Any) -> set[str]:
    """Return the names of a drafter's attention layers; none without one."""
    drafter = getattr(runner, "drafter", None)
    return set(getattr(drafter, "_draft_attn_layer_names", ()))


def give_own_pages(runner: Any) -> None:
    """Give a drafter the pages of its own KV cache group. vLLM 0.32 and 0.33 do so for EAGLE and
    MTP, and give a draft model those of the first group: it would write over the model's pairs.
    """
    if not drafter_layers(runner):
        return
    build = runner._build_attention_metadata

    def with_own_pages(*args: Any, slot_mappings: Any = None, **options: Any) -> Any:
        metadata, common = build(*args, slot_mappings=slot_mappings, **options)
        if common is not None:
            group = runner.drafter.kv_cache_gid
            table = runner.input_batch.block_table[group]
            common = copy(common)  # the first group has the same object
            common.block_table_tensor = table.get_device_tensor(common.num_reqs)
            common.slot_mapping = slot_mappings[group][: common.num_actual_tokens]
        return metadata, common

    runner._build_attention_metadata = with_own_pages
