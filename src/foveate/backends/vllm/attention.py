"""Attention over compressed prompts: what all of vLLM's backends share.

A backend is vLLM's own, with ``Rewriting`` before its metadata builder and ``Compressing`` before
its implementation; ``cpu_attention``, ``flash_attention`` and ``triton_attention`` are these pairs.
The builder shows the kernels each row without its gap, and lists the rows whose prompt is being
read; the implementation lets vLLM's own attend, and then compresses complete prompts in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.backends.vllm.blocks import CompressedSpec, holds_compressed
from foveate.backends.vllm.buffers import Buffers
from foveate.backends.vllm.gap import (
    NO_GAP,
    Gap,
    Phase,
    Room,
    gaps_of,
    kept_slots,
    physical,
    view,
)
from foveate.backends.vllm.prefill import after_pass
from foveate.backends.vllm.prompts import Prompts, Row
from foveate.backends.vllm.vllm_api import AttentionCGSupport, CommonAttentionMetadata


@dataclass
class Step:
    """What this pass means for the prompts of one KV cache group.

    ``again`` are the pass's tokens that stand after a prompt that it completes, with the metadata
    under which they see it compressed; None where there are none.
    """

    prompts: Prompts
    rows: list[Row]
    again: tuple[Int[Tensor, "t"], Any] | None = None


class Rewriting:
    """Before a metadata builder of vLLM's. Groups that are under no policy are dealt with as ever.

    ``prompts`` is set by the worker, once there is a cache.
    """

    prompts: Prompts | None = None
    buffers: Buffers | None = None
    kv_cache_spec: Any  # these are vLLM's
    vllm_config: Any
    block_size: int

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Full graphs for passes of answers alone: prompts are compressed by Python."""
        stock = super().get_cudagraph_support(vllm_config, kv_cache_spec)  # type: ignore[misc]
        most = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return most if holds_compressed(kv_cache_spec) and stock.value > most.value else stock

    @property
    def supports_update_block_table(self) -> bool:
        """Metadata of compressed groups is built for each: their tables are not vLLM's."""
        return (
            not isinstance(self.kv_cache_spec, CompressedSpec)
            and super().supports_update_block_table  # type: ignore[misc]
        )

    def check_layout(self) -> None:
        """Raises UnsupportedEngine where pages are laid out in a way that cannot be read."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """The metadata of one pass, for all layers of the group."""
        spec, common = self.kv_cache_spec, common_attn_metadata
        plain = super().build  # type: ignore[misc]
        if not isinstance(spec, CompressedSpec):
            return plain(common_prefix_len, common, fast_build)
        rows, gaps = rows_of(self.prompts, common, spec.room, spec.block_size, self._gap)
        if self.buffers is None:
            self.buffers = Buffers(self.vllm_config.scheduler_config.max_num_seqs)
        metadata = plain(
            common_prefix_len, rewritten(common, gaps, spec.block_size, self.buffers), fast_build
        )
        if rows and self.prompts is not None:
            # fast: the plan of a first build lies in a buffer that a second would overwrite
            again = later_tokens(common, rows, spec.block_size, lambda it: plain(0, it, True))
            metadata.foveate = Step(self.prompts, rows, again)
        return metadata

    @cached_property
    def _gap(self) -> Callable[[int], Gap]:
        return gaps_of(self.kv_cache_spec.room, self.kv_cache_spec.block_size)


def rewritten(
    common: CommonAttentionMetadata, gaps: list[Gap], block: int, buffers: Buffers
) -> CommonAttentionMetadata:
    """What vLLM's builder is told instead: rows without their gap, and lengths to match."""
    n = common.num_reqs
    table, lengths = view(common.block_table_tensor[:n], common.seq_lens[:n], gaps, block)
    table, lengths = buffers.hold(table, lengths)
    known, ranges = common.seq_lens_cpu_upper_bound, common.mm_req_doc_ranges
    changed: dict[str, Any] = {"block_table_tensor": table, "seq_lens": lengths}
    changed["_num_computed_tokens_cache"] = None
    if known is not None:
        known = known[:n] - torch.tensor([gap.blocks for gap in gaps], dtype=known.dtype) * block
        changed["seq_lens_cpu_upper_bound"] = known
        if any(gap.blocks for gap in gaps):  # otherwise vLLM's own, which capturing sets higher
            changed["max_seq_len"] = int(known.max())
    if ranges is not None:  # positions in the whole prompt; an answer sees all before it anyway
        changed["mm_req_doc_ranges"] = {
            row: spans for row, spans in ranges.items() if not (row < n and gaps[row].blocks)
        }
    return common.replace(**changed)


def later_tokens(
    common: CommonAttentionMetadata,
    rows: list[Row],
    block: int,
    build: Callable[[CommonAttentionMetadata], Any],
) -> tuple[Int[Tensor, "t"], Any] | None:
    """The tokens after prompts that this pass completes, and what they see once it is done."""
    rows = [row for row in rows if row.beyond and row.gap.blocks]
    if not rows:
        return None
    device, counts = common.slot_mapping.device, torch.tensor([row.beyond for row in rows])
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(common.query_start_loc.dtype)
    tokens = torch.cat(
        [torch.arange(row.start + row.new - row.beyond, row.start + row.new) for row in rows]
    ).to(device)
    ends = torch.tensor([row.computed + row.new for row in rows], dtype=common.seq_lens.dtype)
    gaps = [row.gap for row in rows]
    table = torch.stack([row.table for row in rows])
    seen, lengths = view(table, ends.to(device), gaps, block)
    known = ends - torch.tensor([gap.blocks for gap in gaps], dtype=ends.dtype) * block
    return tokens, build(
        CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=known,
            num_reqs=len(rows),
            num_actual_tokens=len(tokens),
            max_query_len=int(counts.max()),
            max_seq_len=int(known.max()),
            block_table_tensor=seen,
            slot_mapping=common.slot_mapping[tokens],
            causal=common.causal,
        )
    )


def rows_of(
    prompts: Prompts | None,
    common: CommonAttentionMetadata,
    room: Room,
    block: int,
    gap_of: Callable[[int], Gap],
) -> tuple[list[Row], list[Gap]]:
    """The rows whose prompt this pass reads, and every row's gap as attention is to see it now.

    Rows of no request have no gap: those of warm-up passes, and those that fill up a full graph.
    """
    rows: list[Row] = []
    gaps = [NO_GAP] * common.num_reqs
    if prompts is None or not prompts.rows:
        return rows, gaps
    starts = common.query_start_loc_cpu.tolist()
    ends = common.seq_lens_cpu_upper_bound.tolist()  # exact where nothing is speculated
    for place in range(prompts.rows):
        length, new = prompts.length(place), starts[place + 1] - starts[place]
        computed, gap = ends[place] - new, gap_of(length)
        if Phase.of(length, computed, new) is Phase.ANSWERING:
            gaps[place] = gap
        elif (budget := room.budget(length, block)) < length:
            table, freed = common.block_table_tensor[place], gap.blocks * block
            rows.append(
                Row(prompts.prompt(place), gap, freed, budget, starts[place], computed, new, table)
            )
    return rows, gaps


class Compressing:
    """Before an implementation of vLLM's: it attends, and then the prompts that the pass has
    completed are compressed. ``read`` and ``write`` are those of the backend's pages.
    """

    read: ClassVar[Callable[..., Any]]
    write: ClassVar[Callable[..., None]]
    scale: float  # vLLM's

    def forward(
        self,
        layer: Any,
        query: Float[Tensor, "t hq d"],
        key: Float[Tensor, "t h d"],
        value: Float[Tensor, "t h d"],
        kv_cache: Float[Tensor, "p h s x"],
        attn_metadata: Any,
        output: Float[Tensor, "t hq d"],
        *more: Any,
        **options: Any,
    ) -> Tensor:
        """As vLLM's; ``output`` is written to."""
        plain = super().forward  # type: ignore[misc]
        out: Tensor = plain(
            layer, query, key, value, kv_cache, attn_metadata, output, *more, **options
        )
        step: Step | None = getattr(attn_metadata, "foveate", None)
        if step is None:
            return out
        began = perf_counter()
        for row in step.rows:
            self.compress(step.prompts, row, layer, query, kv_cache)
        step.prompts.seconds += perf_counter() - began
        if step.again is not None:
            tokens, metadata = step.again
            later = torch.empty_like(output[tokens])
            plain(
                layer,
                query[tokens],
                key[tokens],
                value[tokens],
                kv_cache,
                metadata,
                later,
                *more,
                **options,
            )
            output[tokens] = later
        return out

    def compress(
        self, prompts: Prompts, row: Row, layer: Any, query: Tensor, cache: Tensor
    ) -> None:
        """Moves what the policy keeps of a complete prompt into the blocks that stay."""
        block, ordinal = cache.shape[2], prompts.ordinals[layer.layer_name]
        kept = after_pass(
            prompts, row, ordinal, query, lambda n: self.read(cache, row.table, n), self.scale
        )
        if kept is None:
            return
        if prompts.records:
            row.prompt.kept[ordinal] = kept.positions
        slots = kept_slots(row.gap, row.prompt.length, block).to(cache.device)
        self.write(cache, layer, kept.k, kept.v, physical(slots, row.table, block))
