"""Attention over compressed prompts: what all of vLLM's backends share.

A backend is vLLM's own, with ``Rewriting`` before its metadata builder and ``Compressing`` before
its implementation; ``cpu`` and ``gpu`` hold these pairs. The builder shows the kernels each row
without its gap, and lists the rows whose prompt is being read; the implementation lets vLLM's own
attend, and then compresses complete prompts in place.

A layer is one cell, or, where KV heads keep different numbers of tokens, as many as it has of
these: each with pages and metadata of its own (``heads``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from foveate.backends.vllm.blocks import CompressedSpec, holds_compressed
from foveate.backends.vllm.codes import Codes, chosen, plain_queries
from foveate.backends.vllm.gap import Buffers, Phase, kept_slots, physical, view
from foveate.backends.vllm.heads import EVERY, Cell
from foveate.backends.vllm.plans import Rooms, rooms_in
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

    def attend_by_head(self, group: int) -> None:
        """Plans are made for one KV head and the ``group`` of query heads that share it."""
        for name in ("num_heads", "num_heads_q"):
            if hasattr(self, name):
                setattr(self, name, group)

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
        rows, gaps = rows_of(self.prompts, common, self._rooms)
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
    def _rooms(self) -> Rooms:  # once: to look it up, all numbers of a profile are hashed
        return rooms_in(self.kv_cache_spec.rooms, self.kv_cache_spec.block_size)


def rewritten(
    common: CommonAttentionMetadata, gaps: list[int], block: int, buffers: Buffers
) -> CommonAttentionMetadata:
    """What vLLM's builder is told instead: rows without their gap, and lengths to match."""
    n = common.num_reqs
    table, lengths = view(common.block_table_tensor[:n], common.seq_lens[:n], gaps, block)
    table, lengths = buffers.hold(table, lengths)
    known, ranges = common.seq_lens_cpu_upper_bound, common.mm_req_doc_ranges
    changed: dict[str, Any] = {"block_table_tensor": table, "seq_lens": lengths}
    changed["_num_computed_tokens_cache"] = None
    if known is not None:
        known = known[:n] - known.new_tensor(gaps) * block
        changed["seq_lens_cpu_upper_bound"] = known
        if any(gaps):  # otherwise vLLM's own, which capturing sets higher
            changed["max_seq_len"] = int(known.max())
    if ranges is not None:  # positions in the whole prompt; an answer sees all before it anyway
        changed["mm_req_doc_ranges"] = {
            row: spans for row, spans in ranges.items() if not (row < n and gaps[row])
        }
    return common.replace(**changed)


def later_tokens(
    common: CommonAttentionMetadata,
    rows: list[Row],
    block: int,
    build: Callable[[CommonAttentionMetadata], Any],
) -> tuple[Int[Tensor, "t"], Any] | None:
    """The tokens after prompts that this pass completes, and what they see once it is done."""
    rows = [row for row in rows if row.beyond and row.gap]
    if not rows:
        return None
    device, here = common.slot_mapping.device, torch.device("cpu")
    counts = torch.tensor([row.beyond for row in rows], dtype=torch.long, device=here)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(common.query_start_loc.dtype)
    tokens = torch.cat(
        [
            torch.arange(row.start + row.new - row.beyond, row.start + row.new, device=here)
            for row in rows
        ]
    ).to(device)
    read = [row.computed + row.new for row in rows]
    ends = torch.tensor(read, dtype=common.seq_lens.dtype, device=here)
    gaps = [row.gap for row in rows]
    seen, lengths = view(torch.stack([row.table for row in rows]), ends.to(device), gaps, block)
    known = ends - ends.new_tensor(gaps) * block
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
    prompts: Prompts | None, common: CommonAttentionMetadata, rooms: Rooms
) -> tuple[list[Row], list[int]]:
    """The rows whose prompt this pass reads, and every row's gap as attention is to see it now.

    Rows of no request have no gap: those of warm-up passes, and those that fill up a full graph.
    """
    rows: list[Row] = []
    gaps = [0] * common.num_reqs
    if prompts is None or not (names := prompts.rows(common)):
        return rows, gaps
    starts = common.query_start_loc_cpu.tolist()
    ends = common.seq_lens_cpu_upper_bound.tolist()  # of what is read, exact
    for place, name in enumerate(names):
        plan, new = prompts.plan(name), starts[place + 1] - starts[place]
        if plan.key is None:
            continue
        computed, gap = ends[place] - new, rooms.gap(plan)
        if Phase.of(plan.length, computed, new) is Phase.ANSWERING:
            gaps[place] = gap
        elif (budget := rooms.budget(plan)) < plan.length:
            table = common.block_table_tensor[place]
            prompt, kept = prompts.prompt(name), rooms.kept(plan)
            rows.append(Row(prompt, gap, kept, budget, starts[place], computed, new, table))
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
        kv_cache: Real[Tensor, "p c s x"],
        attn_metadata: Any,
        output: Float[Tensor, "t hq d"],
        *more: Any,
        **options: Any,
    ) -> Tensor:
        """As vLLM's; ``output`` is written to."""
        cells = [Cell(self, attn_metadata, kv_cache)]
        if attn_metadata is not None and (heads := getattr(layer, "foveate_heads", None)):
            cells = heads.cells() or cells
        attend = partial(_attend, layer, query, key, value, output, more, options)
        for cell in cells:
            attend(cell, cell.metadata)
        steps = [s for cell in cells if (s := getattr(cell.metadata, "foveate", None))]
        if not steps:  # else every cell has one
            return output
        self._compress(steps, layer, plain_queries(layer, query, key.dtype), cells)
        for cell, step in zip(cells, steps, strict=True):
            if step.again is not None:
                attend(cell, step.again[1], step.again[0])
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: Float[Tensor, "t h d"],
        value: Float[Tensor, "t h d"],
        kv_cache: Real[Tensor, "p c s x"],
        slot_mapping: Int[Tensor, "t"],
    ) -> None:
        """Writes new pairs, as vLLM does: each head's into its own pages, where it has some."""
        heads = getattr(layer, "foveate_heads", None)
        if heads is None or not heads.apart:
            plain = super().do_kv_cache_update  # type: ignore[misc]
            plain(layer, key, value, kv_cache, slot_mapping)
            return
        plain = super(Compressing, heads.implementation).do_kv_cache_update  # type: ignore[misc]
        for head, (cache, slots) in enumerate(heads.pages()):
            pair = (t[:, head : head + 1].contiguous() for t in (key, value))
            plain(layer, *pair, cache, slots)

    def _compress(
        self, steps: Sequence[Step], layer: Any, query: Tensor, cells: Sequence[Cell]
    ) -> None:
        """Compresses the prompts of a pass. One that cannot be is left as it lies: its last tokens
        stay, and its request fails; no other is concerned.
        """
        prompts, began = steps[0].prompts, perf_counter()
        for rows in zip(*(step.rows for step in steps), strict=True):
            try:
                self.compress(prompts, rows, layer, query, cells)
            except Exception as error:
                prompts.fail(rows[0], error)
                _numbers_only(rows, cells, Codes.of(layer))
        prompts.seconds += perf_counter() - began

    def compress(
        self,
        prompts: Prompts,
        rows: Sequence[Row],
        layer: Any,
        query: Tensor,
        cells: Sequence[Cell],
    ) -> None:
        """Moves what the policy keeps of a complete prompt into the blocks that stay; ``rows`` are
        the prompt's in each of the layer's cells.
        """
        block, ordinal = cells[0].cache.shape[2], prompts.ordinals[layer.layer_name]
        codes = Codes.of(layer)

        def pairs(n: int) -> tuple[Tensor, Tensor]:
            read = [
                self.read(cell.cache, row.table, n) for cell, row in zip(cells, rows, strict=True)
            ]
            k, v = read[0] if len(read) == 1 else (torch.cat(t, 1) for t in zip(*read, strict=True))
            return (k, v) if codes is None else codes.values(k, v, query.dtype)

        kept = after_pass(prompts, rows, ordinal, query, pairs, self.scale)
        if kept is None:
            return
        if prompts.records:
            rows[0].prompt.kept[ordinal] = [head for one in kept for head in one.positions]
        for cell, row, one in zip(cells, rows, kept, strict=True):
            slots = kept_slots(row.gap, row.prompt.length, block).to(cell.cache.device)
            k, v = one.k, one.v
            if codes is not None and one.moved:
                held = self.read(cell.cache, row.table, row.end)
                k, v = (chosen(half, one.positions) for half in held)
            elif codes is not None:
                k, v = codes.coded(k, v)
            self.write(cell.cache, layer, k, v, physical(slots, row.table, block))


class Backend:
    """Before a backend of vLLM's: it is made of these parts."""

    builder: ClassVar[type]
    implementation: ClassVar[type]

    @classmethod
    def get_impl_cls(cls) -> type:
        return cls.implementation

    @classmethod
    def get_builder_cls(cls) -> type:
        return cls.builder


def _numbers_only(rows: Sequence[Row], cells: Sequence[Cell], codes: Codes | None) -> None:
    """Takes what is no number out of a failed prompt's pages: vLLM's kernels multiply whatever
    stands in the unused slots of a page by zero, so it would spread to whoever gets the page next.
    """
    for cell, row in zip(cells, rows, strict=True):
        pages = row.table[: -(-row.end // cell.cache.shape[2])].long()
        held = cell.cache[pages]
        cell.cache[pages] = held.nan_to_num(0.0) if codes is None else codes.numbers_only(held)


def _attend(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    more: tuple[Any, ...],
    options: dict[str, Any],
    cell: Cell,
    metadata: Any,
    tokens: Int[Tensor, "t"] | None = None,
) -> None:
    """One cell's attention, which is vLLM's own, of all tokens of a pass or of some."""
    plain = super(Compressing, cell.implementation).forward
    if cell.queries == EVERY and tokens is None:
        plain(layer, query, key, value, cell.cache, metadata, output, *more, **options)
        return
    chosen = EVERY if tokens is None else tokens
    q = query[chosen][:, cell.queries].contiguous()
    k, v = (t[chosen][:, cell.pairs].contiguous() for t in (key, value))
    part = output.new_empty((*q.shape[:-1], output.shape[-1]))  # queries may be codes
    plain(layer, q, k, v, cell.cache, metadata, part, *more, **options)
    output[chosen, cell.queries] = part
