"""Attention over compressed prompts: what all of vLLM's backends share.

A backend is vLLM's own, with ``Rewriting`` before its metadata builder and ``Compressing`` before
its implementation; ``cpu`` and ``gpu`` hold these pairs. The builder (``rewriting``) shows the
kernels each row without its gap, and lists the rows whose prompt is being read; the implementation
lets vLLM's own attend, and then compresses complete prompts in place.

A layer is one cell, or, where KV heads keep different numbers of tokens, as many as it has of
these: each with pages and metadata of its own (``heads``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from foveate.vllm.codes import Codes, chosen, plain_queries
from foveate.vllm.plans.failures import Reason
from foveate.vllm.plans.gap import kept_slots, physical
from foveate.vllm.worker.heads import EVERY, Cell
from foveate.vllm.worker.prefill import after_pass
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rewriting import RewritingStep
from foveate.vllm.worker.rows import Row


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
        for cell in cells:
            _attend(layer, query, key, value, output, more, options, cell)
        steps = [s for cell in cells if (s := getattr(cell.metadata, "foveate", None))]
        if steps:  # one of every cell
            self._compress(steps, layer, plain_queries(layer, query, key.dtype), cells)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: Float[Tensor, "t h d"],
        value: Float[Tensor, "t h d"],
        kv_cache: Real[Tensor, "p c s x"],
        slot_mapping: Int[Tensor, "t"],
    ) -> None:
        """Write new pairs, as vLLM does: each head's into its own pages, where it has some."""
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
        self, steps: Sequence[RewritingStep], layer: Any, query: Tensor, cells: Sequence[Cell]
    ) -> None:
        """Compresses the prompts of a pass. One that cannot be is left as it lies: its last tokens
        stay, and its request fails; no other is concerned.
        """
        prompts = steps[0].prompts
        for rows in zip(*(step.readable for step in steps), strict=True):
            prompt, began = rows[0].prompt, perf_counter()
            try:
                self.compress(prompts, rows, layer, query, cells)
            except Exception as error:
                why = f"its prompt cannot be compressed: {error!r}"
                prompts.fail(prompt.name, Reason.COMPRESSION, why)
                _numbers_only(rows, cells, Codes.of(layer))
            prompts.seconds[prompt.plan.chosen] += perf_counter() - began

    def compress(
        self,
        prompts: Prompts,
        rows: Sequence[Row],
        layer: Any,
        query: Tensor,
        cells: Sequence[Cell],
    ) -> None:
        """Move what the policy keeps of a request at a boundary into the blocks that stay; ``rows``
        are the request's in each of the layer's cells.
        """
        block, ordinal = cells[0].cache.shape[2], prompts.ordinals[layer.layer_name]
        codes = Codes.of(layer)

        def held(cell: Cell, row: Row) -> tuple[Tensor, Tensor]:
            pairs: tuple[Tensor, Tensor] = self.read(
                cell.cache, row.table[row.before :], row.end - row.before * block
            )
            return pairs

        def pairs() -> tuple[Tensor, Tensor]:
            read = [held(cell, row) for cell, row in zip(cells, rows, strict=True)]
            k, v = read[0] if len(read) == 1 else (torch.cat(t, 1) for t in zip(*read, strict=True))
            return (k, v) if codes is None else codes.values(k, v, query.dtype)

        kept = after_pass(prompts, rows, ordinal, query, pairs, self.scale)
        if kept is None:
            return
        if prompts.records:
            rows[0].prompt.kept[ordinal] = [head for one in kept for head in one.positions]
        for cell, row, one in zip(cells, rows, kept, strict=True):
            if not row.moves:
                continue  # all of its pairs stay where they are, and others may read them
            slots = kept_slots(row.gap, row.until, block).to(cell.cache.device)
            k, v = one.k, one.v
            if codes is not None and one.moved:
                k, v = (chosen(half, one.slots) for half in held(cell, row))
            elif codes is not None:
                k, v = codes.coded(k, v)
            self.write(cell.cache, layer, k, v, physical(slots, row.table, block))


def _numbers_only(rows: Sequence[Row], cells: Sequence[Cell], codes: Codes | None) -> None:
    """Take what is no number out of a failed prompt's pages: vLLM's kernels multiply whatever
    stands in the unused slots of a page by zero, so it would spread to whoever gets the page next.
    """
    for cell, row in zip(cells, rows, strict=True):
        pages = row.table[row.before : -(-row.end // cell.cache.shape[2])].long()
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
) -> None:
    """Have vLLM compute the attention of one cell, over all tokens of a pass."""
    plain = super(Compressing, cell.implementation).forward
    if cell.queries == EVERY:
        plain(layer, query, key, value, cell.cache, cell.metadata, output, *more, **options)
        return
    q = query[:, cell.queries].contiguous()
    k, v = (t[:, cell.pairs].contiguous() for t in (key, value))
    part = output.new_empty((*q.shape[:-1], output.shape[-1]))  # queries may be codes
    plain(layer, q, k, v, cell.cache, cell.metadata, part, *more, **options)
    output[:, cell.queries] = part
