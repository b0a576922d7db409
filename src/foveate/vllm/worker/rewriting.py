"""What attention is shown of a batch: each row without the gap of its prompt, and no row of which
something would be read that the scheduler does not hold for its request.
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
"""vLLM's block that no request ever holds."""


@dataclass
class RewritingStep:
    """Rows of one KV cache group whose prompt or answer a policy sees in this pass."""

    prompts: Prompts
    rows: list[Row]

    @property
    def readable(self) -> list[Row]:
        """The rows that no group has barred: groups are looked at one after the other."""
        return [row for row in self.rows if row.prompt.name not in self.prompts.barred]


class Rewriting:
    """Before a metadata builder of vLLM's. Groups that are under no policy are dealt with as ever.

    ``prompts``, and the ``group``'s number among vLLM's KV cache groups, are set by the worker,
    once there is a cache.
    """

    prompts: Prompts | None = None
    group: int = 0
    buffers: Buffers | None = None
    kv_cache_spec: Any  # these are vLLM's
    vllm_config: Any
    block_size: int

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Full graphs for passes of answers alone: prompts are compressed by Python."""
        stock = super().get_cudagraph_support(vllm_config, kv_cache_spec)  # type: ignore[misc]
        most = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return most if has_compressed(kv_cache_spec) and stock.value > most.value else stock

    @property
    def supports_update_block_table(self) -> bool:
        """Metadata of compressed groups is built for each: their tables are not vLLM's."""
        return (
            not isinstance(self.kv_cache_spec, CompressedSpec)
            and super().supports_update_block_table  # type: ignore[misc]
        )

    def check_layout(self) -> None:
        """Raise UnsupportedEngine where pages are laid out in a way that cannot be read."""

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
        """Return the metadata of one pass, for all layers of the group."""
        spec, common = self.kv_cache_spec, common_attn_metadata
        plain = super().build  # type: ignore[misc]
        if not isinstance(spec, CompressedSpec):
            return plain(common_prefix_len, common, fast_build)
        rows, gaps, barred = rows_of(self.prompts, common, self.group, spec.block_size)
        if self.buffers is None:
            self.buffers = Buffers(self.vllm_config.scheduler_config.max_num_seqs)
        gathered = rewritten(common, gaps, spec.block_size, self.buffers, barred)
        metadata = plain(common_prefix_len, gathered, fast_build)
        if (rows or barred) and self.prompts is not None:
            metadata.foveate = RewritingStep(self.prompts, rows)
        return metadata


def rewritten(
    common: CommonAttentionMetadata,
    gaps: list[int],
    block: int,
    buffers: Buffers,
    barred: Sequence[int] = (),
) -> CommonAttentionMetadata:
    """Return what vLLM's builder is given instead: rows without their gap, and lengths to match.
    Rows that are ``barred`` read vLLM's null block, which is nobody's.
    """
    n = common.num_reqs
    table, lengths = view(common.block_table_tensor[:n], common.seq_lens[:n], gaps, block)
    for row in barred:
        table[row] = NULL_BLOCK
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


def rows_of(
    prompts: Prompts | None,
    common: CommonAttentionMetadata,
    group: int,
    block: int,
) -> tuple[list[Row], list[int], list[int]]:
    """Return the rows whose prompt this pass reads, every row's gap as attention is to see it now,
    and which rows would read what the scheduler does not hold for their request.

    Rows of no request have no gap: those of warm-up passes, and those that fill up a full graph.
    """
    rows: list[Row] = []
    gaps, barred = [0] * common.num_reqs, list[int]()
    if prompts is None or not (names := prompts.rows(common)):
        return rows, gaps, barred
    starts = common.query_start_loc_cpu.tolist()
    ends = common.seq_lens_cpu_upper_bound.tolist()  # of what is read, exact
    for place, name in enumerate(names):
        if name is None:
            continue
        start, end = starts[place], ends[place]
        new, plan = starts[place + 1] - start, prompts.plan(name)
        if why := wrong(prompts, name, group, end - new, end, block):
            prompts.bar(name, why)
            barred.append(place)
            continue
        boundaries = plan and plan.boundaries.get(group)
        if boundaries is None:
            continue
        gaps[place] = boundaries.gap(end - new, block)
        move = prompts.held.move(name, group)
        until = move.end if move else prompts.seen(name, group, end - new, new)
        if until is not None:
            prompt, table = prompts.prompt(name), common.block_table_tensor[place]
            now = (start, end - new, new, move is not None)
            rows.append(Row(prompt, boundaries, table, block, gaps[place], until, *now))
    return rows, gaps, barred


def wrong(
    prompts: Prompts, name: str, group: int, computed: int, end: int, block: int
) -> str | None:
    """Return why a request must not be read up to its token ``end`` in this pass, which begins
    after ``computed``; None where the scheduler holds what is read, and nobody else reads what is
    moved.
    """
    if (plan := prompts.plan(name)) is None:
        return "the scheduler has sent no order, or one for other policies than this worker has"
    held = prompts.held
    if (boundaries := plan.boundaries.get(group)) is None:
        return held.reads(name, group, 0, end, block) or held.moves(name, group, None, block)
    if boundaries.freed * block != boundaries.left:
        return f"{boundaries} of {plan.length} tokens is not told in blocks of {block}"
    until = boundaries.after(computed)
    if until is not None and end > until:
        return f"{end} tokens would be read in a pass that has to end at {until}"
    before, move = boundaries.gap(computed, block), plan.move(group, computed, end, block)
    return held.reads(name, group, before, end, block) or held.moves(name, group, move, block)
