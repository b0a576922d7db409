"""Attention metadata of a batch: each row without the gap of its prompt, and without rows that
would read blocks which the scheduler does not hold for their request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.vllm.plans.gap import Buffers, view
from foveate.vllm.scheduler.blocks import CompressedSpec, has_compressed
from foveate.vllm.vllm_api import AttentionCGSupport, CommonAttentionMetadata
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rows import Row

NULL_BLOCK = 0
"""vLLM's null block, which never belongs to a request."""


@dataclass
class RewritingStep:
    """Rows of one KV cache group whose prompt or answer a policy observes in this pass."""

    prompts: Prompts
    rows: list[Row]

    @property
    def readable(self) -> list[Row]:
        """Rows that no KV cache group has barred; later groups may bar a row of this one."""
        return [row for row in self.rows if row.prompt.name not in self.prompts.barred]


class Rewriting:
    """Mixin in front of vLLM's metadata builder; groups without a policy pass through unchanged.

    The worker sets ``prompts`` and ``group``, the group's number among vLLM's KV cache groups, once
    there is a cache.
    """

    prompts: Prompts | None = None
    group: int = 0
    buffers: Buffers | None = None
    kv_cache_spec: Any  # from here on, vLLM's attributes
    vllm_config: Any
    block_size: int

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Restrict full graphs to passes of single answer tokens: compression runs in Python."""
        stock = super().get_cudagraph_support(vllm_config, kv_cache_spec)  # type: ignore[misc]
        limit = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return limit if has_compressed(kv_cache_spec) and stock.value > limit.value else stock

    @property
    def supports_update_block_table(self) -> bool:
        """False for compressed groups: their metadata has other rows than vLLM's block tables."""
        return (
            not isinstance(self.kv_cache_spec, CompressedSpec)
            and super().supports_update_block_table  # type: ignore[misc]
        )

    def check_layout(self) -> None:
        """Raise UnsupportedEngine if the layout of pages cannot be read; overridden for CPUs."""

    def attend_by_head(self, group: int) -> None:
        """Set vLLM's number of heads to ``group``, the query heads that share one KV head."""
        for name in ("num_heads", "num_heads_q"):
            if hasattr(self, name):
                setattr(self, name, group)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Return the metadata of one pass, for all layers of the group."""
        spec, common = self.kv_cache_spec, common_attn_metadata
        plain = super().build  # type: ignore[misc]
        if not isinstance(spec, CompressedSpec):
            return plain(common_prefix_len, common, fast_build)
        rows, gaps, barred = rows_of(self.prompts, common, self.group, spec.block_size)
        if self.buffers is None:
            self.buffers = Buffers(self.vllm_config.scheduler_config.max_num_seqs)
        gathered = without_gaps(common, gaps, spec.block_size, self.buffers, barred)
        metadata = plain(common_prefix_len, gathered, fast_build)
        if (rows or barred) and self.prompts is not None:
            metadata.foveate = RewritingStep(self.prompts, rows)
        return metadata


def without_gaps(
    common: CommonAttentionMetadata,
    gaps: list[int],
    block: int,
    buffers: Buffers,
    barred: Sequence[int] = (),
) -> CommonAttentionMetadata:
    """Return the metadata for vLLM's builder: rows without their gap, and matching lengths. Rows
    that are ``barred`` read only vLLM's null block.
    """
    n = common.num_reqs
    table, lengths = view(common.block_table_tensor[:n], common.seq_lens[:n], gaps, block)
    for row in barred:
        table[row] = NULL_BLOCK
    table, lengths = buffers.fill(table, lengths)
    known, ranges = common.seq_lens_cpu_upper_bound, common.mm_req_doc_ranges
    changed: dict[str, Any] = {"block_table_tensor": table, "seq_lens": lengths}
    changed["_num_computed_tokens_cache"] = None
    if known is not None:
        known = known[:n] - known.new_tensor(gaps) * block
        changed["seq_lens_cpu_upper_bound"] = known
        if any(gaps):  # otherwise keep vLLM's, which is higher while a graph is captured
            changed["max_seq_len"] = int(known.max())
    if ranges is not None:  # positions in the prompt; answers attend to all earlier tokens anyway
        changed["mm_req_doc_ranges"] = {
            row: spans for row, spans in ranges.items() if not (row < n and gaps[row])
        }
    return common.replace(**changed)


def rows_of(
    prompts: Prompts | None,
    common: CommonAttentionMetadata,
    group: int,
    block: int,
) -> tuple[list[Row], list[int], list[int]]:
    """Return the rows that a policy observes in this pass, every row's gap for attention in this
    pass, and the indices of barred rows, which would read blocks that are not their request's.

    Rows without a request, in warm-up passes and in the padding of a full graph, have no gap.
    """
    rows: list[Row] = []
    gaps, barred = [0] * common.num_reqs, list[int]()
    if prompts is None or not (names := prompts.rows(common)):
        return rows, gaps, barred
    starts = common.query_start_loc_cpu.tolist()
    ends = common.seq_lens_cpu_upper_bound.tolist()  # exact for rows that read their prompt
    for index, name in enumerate(names):
        if name is None:
            continue
        start, end = starts[index], ends[index]
        new, plan = starts[index + 1] - start, prompts.plan(name)
        if why := violation(prompts, name, group, end - new, end, block):
            prompts.bar(name, why)
            barred.append(index)
            continue
        boundaries = plan and plan.boundaries.get(group)
        if boundaries is None:
            continue
        gaps[index] = boundaries.gap(end - new, block)
        move = prompts.books.move(name, group)
        until = move.end if move else prompts.observed_boundary(name, group, end - new, new)
        if until is not None:
            prompt, table = prompts.prompt(name), common.block_table_tensor[index]
            now = (start, end - new, new, move is not None)
            rows.append(Row(prompt, boundaries, table, block, gaps[index], until, *now))
    return rows, gaps, barred


def violation(
    prompts: Prompts, name: str, group: int, computed: int, end: int, block: int
) -> str | None:
    """Return why this pass must not read a request's tokens from ``computed`` to ``end``; None if
    the scheduler holds all blocks that are read, and no other request reads those that are written.
    """
    if (plan := prompts.plan(name)) is None:
        return "the scheduler has sent no order, or one for other policies than this worker has"
    books = prompts.books
    if (boundaries := plan.boundaries.get(group)) is None:
        return books.reads(name, group, 0, end, block) or books.moves(name, group, None, block)
    if boundaries.freed * block != boundaries.evicted:
        return f"{boundaries} of {plan.length} tokens is not told in blocks of {block}"
    until = boundaries.after(computed)
    if until is not None and end > until:
        return f"{end} tokens would be read in a pass that has to end at {until}"
    before, move = boundaries.gap(computed, block), plan.move(group, computed, end, block)
    return books.reads(name, group, before, end, block) or books.moves(name, group, move, block)
