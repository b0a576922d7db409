"""Attention over compressed prompts, shared by all of vLLM's backends.

A backend is vLLM's own, with the mixin ``Rewriting`` in front of its metadata builder and the mixin
``Compressing`` in front of its implementation; ``cpu`` and ``gpu`` define these pairs. The builder
(``rewriting``) passes each row to the kernels without its gap, and lists the rows whose prompt is
being read. The implementation calls vLLM's attention, and then compresses complete prompts in
place.

A layer is one cell, or one cell per KV head if heads keep different numbers of tokens, each with
pages and metadata of its own (``heads``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from foveate.vllm.codes import Codes, decode_queries, select_codes
from foveate.vllm.plans.failures import Reason
from foveate.vllm.plans.gap import kept_slots, physical
from foveate.vllm.worker.heads import EVERY, Cell
from foveate.vllm.worker.metadata import RewritingStep
from foveate.vllm.worker.prefill import after_pass
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rows import Row


class Compressing:
    """Mixin in front of vLLM's attention implementation: after attention, it compresses the prompts
    that the pass has completed. ``read`` and ``write`` access the backend's pages.
    """

    read: ClassVar[Callable[..., Any]]
    write: ClassVar[Callable[..., None]]
    scale: float  # vLLM's attribute

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
        """Attend as vLLM does, writing to ``output``, and then compress."""
        cells = [Cell(self, attn_metadata, kv_cache)]
        if attn_metadata is not None and (heads := getattr(layer, "foveate_heads", None)):
            cells = heads.cells() or cells
        for cell in cells:
            _attend(layer, query, key, value, output, more, options, cell)
        steps = [s for cell in cells if (s := getattr(cell.metadata, "foveate", None))]
        if steps:  # one per cell, or none
            self._compress(steps, layer, decode_queries(layer, query, key.dtype), cells)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: Float[Tensor, "t h d"],
        value: Float[Tensor, "t h d"],
        kv_cache: Real[Tensor, "p c s x"],
        slot_mapping: Int[Tensor, "t"],
    ) -> None:
        """Write new pairs as vLLM does; heads with pages of their own are written one by one."""
        heads = getattr(layer, "foveate_heads", None)
        if heads is None or not heads.has_own_pages:
            plain = super().do_kv_cache_update  # type: ignore[misc]
            plain(layer, key, value, kv_cache, slot_mapping)
            return
        plain = super(Compressing, heads.implementation).do_kv_cache_update  # type: ignore[misc]
        for head, (cache, slots) in enumerate(heads.pages()):
            pair = (t[:, head : head + 1].contiguous() for t in (key, value))
            plain(layer, *pair, cache, slots)

    def _compress(
        self, steps: Sequence[RewritingStep], layer: Any, query: Tensor, cells: Sequence[Cell]
    ) -> None:
        """Compress the prompts of a pass. If one fails, its pages keep the uncompressed pairs and
        its request fails; other requests are not affected.
        """
        prompts = steps[0].prompts
        for rows in zip(*(step.readable for step in steps), strict=True):
            prompt, began = rows[0].prompt, perf_counter()
            try:
                self.compress(prompts, rows, layer, query, cells)
            except Exception as error:
                why = f"its prompt cannot be compressed: {error!r}"
                prompts.fail(prompt.name, Reason.COMPRESSION, why)
                _clear_nans(rows, cells, Codes.of(layer))
            prompts.seconds[prompt.plan.chosen] += perf_counter() - began

    def compress(
        self,
        prompts: Prompts,
        rows: Sequence[Row],
        layer: Any,
        query: Tensor,
        cells: Sequence[Cell],
    ) -> None:
        """Move the pairs that the policy keeps at a boundary into the blocks that are not freed;
        ``rows`` are the request's rows in each of the layer's cells.
        """
        block, ordinal = cells[0].cache.shape[2], prompts.ordinals[layer.layer_name]
        codes = Codes.of(layer)

        def stored(cell: Cell, row: Row) -> tuple[Tensor, Tensor]:
            pairs: tuple[Tensor, Tensor] = self.read(
                cell.cache, row.table[row.before :], row.end - row.before * block
            )
            return pairs

        def pairs() -> tuple[Tensor, Tensor]:
            read = [stored(cell, row) for cell, row in zip(cells, rows, strict=True)]
            k, v = read[0] if len(read) == 1 else (torch.cat(t, 1) for t in zip(*read, strict=True))
            return (k, v) if codes is None else codes.decode(k, v, query.dtype)

        kept = after_pass(prompts, rows, ordinal, query, pairs, self.scale)
        if kept is None:
            return
        if prompts.records:
            rows[0].prompt.kept[ordinal] = [head for part in kept for head in part.positions]
        for cell, row, part in zip(cells, rows, kept, strict=True):
            if not row.moves:
                continue  # its pairs do not move, and other requests may read them
            slots = kept_slots(row.gap, row.until, block).to(cell.cache.device)
            k, v = part.k, part.v
            if codes is not None and part.moved:
                k, v = (select_codes(half, part.slots) for half in stored(cell, row))
            elif codes is not None:
                k, v = codes.encode(k, v)
            self.write(cell.cache, layer, k, v, physical(slots, row.table, block))


def _clear_nans(rows: Sequence[Row], cells: Sequence[Cell], codes: Codes | None) -> None:
    """Replace NaN and infinity in a failed prompt's pages. vLLM's kernels multiply unused slots of
    a page by zero, so a NaN would spread to the next request that gets the page.
    """
    for cell, row in zip(cells, rows, strict=True):
        pages = row.table[row.before : -(-row.end // cell.cache.shape[2])].long()
        stored = cell.cache[pages]
        cell.cache[pages] = stored.nan_to_num(0.0) if codes is None else codes.without_nans(stored)


def _attend(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    more: tuple[Any, ...],
    options: dict[str, Any],
    cell: Cell,
) -> None:
    """Compute the attention of one cell with vLLM's implementation, over all tokens of a pass."""
    plain = super(Compressing, cell.implementation).forward
    if cell.queries == EVERY:
        plain(layer, query, key, value, cell.cache, cell.metadata, output, *more, **options)
        return
    q = query[:, cell.queries].contiguous()
    k, v = (t[:, cell.pairs].contiguous() for t in (key, value))
    # of the output's type, as queries may be codes
    part = output.new_empty((*q.shape[:-1], output.shape[-1]))
    plain(layer, q, k, v, cell.cache, cell.metadata, part, *more, **options)
    output[:, cell.queries] = part
