"""Compression of one request's layer: queries remembered between the passes of its prompt, and the
policy's choice at its end and at other boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.cache.slots import Slots
from foveate.compression import pipeline
from foveate.compression.layer_memory import Pass, Phase, Remembered
from foveate.errors import FoveateError
from foveate.policies.amount import Amount
from foveate.policies.protocols import Scope
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rows import Row

Pairs = tuple[Float[Tensor, "1 h n d"], Float[Tensor, "1 h n e"]]


class KeptPairs(NamedTuple):
    """Kept pairs of a cell, ascending per head: their former ``slots``, and their ``positions`` in
    the request.

    ``moved`` is True if they are unchanged pairs of the request, and False if some were merged.
    """

    k: Float[Tensor, "k h d"]
    v: Float[Tensor, "k h e"]
    slots: Int[Tensor, "h k"]
    positions: Int[Tensor, "h k"]
    moved: bool


@dataclass(frozen=True, kw_only=True)
class FixedCounts:
    """Budget with fixed counts: ``tokens`` of each KV head, which fill the blocks that stay."""

    amount: Amount
    tokens: tuple[int, ...]
    scope: Scope = field(default="layer", init=False)

    def pairs(self, layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return the pairs of this layer's heads together, per row."""
        return torch.full_like(tokens, sum(self.tokens))

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [
            layer.available.new_tensor(self.tokens).expand_as(layer.available) for layer in scored
        ]


def after_pass(
    prompts: Prompts,
    cells: Sequence[Row],
    ordinal: int,
    queries: Float[Tensor, "m hq d"],
    pairs: Callable[[], Pairs],
    scale: float,
) -> list[KeptPairs] | None:
    """Return the kept pairs of each cell if this pass has brought a request to a boundary.

    ``cells`` are the request's rows: one, or one per KV head. ``queries`` are those of the whole
    pass; ``pairs()`` returns the layer's stored pairs of this request.

    Returns:
        None before the boundary, and if no pairs move.
    """
    row = cells[0]
    prompt = row.prompt
    q = queries[row.start : row.start + row.new].transpose(0, 1)[None]
    if not row.computed:
        prompt.reading.layers[ordinal] = Remembered()  # a preempted request starts over
        prompt.positions.pop(ordinal, None)
    if row.end < row.until and not prompt.policy.running:
        queries_needed = prompt.policy.score.queries(row.budget)
        images = _at_tokens(prompt.image, torch.arange(row.computed, row.end, device=q.device))
        prompt.reading.layers[ordinal].add(q, images[None], queries_needed)
        return None
    k, v = pairs()
    slots, depth = _slots_of(prompts, row, k, ordinal), prompts.depth
    index = prompts.model_indices[ordinal]
    layer = Layer(
        q=q, k=k, v=v, slots=slots, scale=scale, ordinal=ordinal, model_index=index, depth=depth
    )
    heads = layer.k.shape[1] // len(cells)
    counts = tuple(cell.kept for cell in cells for _ in range(heads))
    budget = FixedCounts(amount=prompt.policy.amount, tokens=counts)
    stored = layer.slots.available
    kept_by_row = prompt.reading.read(layer, _phase_of(row), stored, budget=budget).get(ordinal)
    if not any(cell.moves for cell in cells):
        return None
    if kept_by_row is None:
        raise FoveateError(
            f"the policy compresses nothing at token {row.until}, where the scheduler frees blocks"
        )
    kept = [
        _part(kept_by_row, layer, slice(i * heads, (i + 1) * heads), cell.kept)
        for i, cell in enumerate(cells)
    ]
    if prompt.plan.recompresses:
        prompt.positions[ordinal] = torch.cat([part.positions for part in kept]).int()
    return kept


def _phase_of(row: Row) -> Pass:
    """Return the phase of a row's pass. A pass that ends before its boundary counts as READING, in
    an answer as well: its queries are observed, and nothing is compressed.
    """
    length, phase = row.prompt.length, Phase.READING
    if row.end == row.until and row.until >= length:
        phase = Phase.FINISHING if row.until == length else Phase.ANSWERING
    return Pass(row.end, length, phase)


def _slots_of(prompts: Prompts, row: Row, k: Float[Tensor, "1 h n d"], ordinal: int) -> Slots:
    """Return the slots of a request in a pass. Until pairs are evicted all layers share one object,
    cached in the prompt and dropped after the last layer.
    """
    prompt, positions = row.prompt, row.prompt.positions.get(ordinal)
    if positions is not None:
        return _slots(row, k, positions)
    key = (row.computed, row.end, row.budget, *k.shape[1:3])
    cached = prompt.slots
    if cached is None or cached[0] != key:
        cached = key, _slots(row, k, None)
    prompt.slots = None if ordinal == max(prompts.ordinals.values()) else cached
    return cached[1]


def _slots(row: Row, k: Float[Tensor, "1 h n d"], positions: Int[Tensor, "h k"] | None) -> Slots:
    """Build the slots of a request that kept the pairs at ``positions``, or all pairs if None."""
    (heads, n), prompt = k.shape[1:3], row.prompt
    kept = 0 if positions is None else positions.shape[1]
    pos = torch.arange(row.end - (n - kept), row.end, device=k.device)[None]
    if positions is not None:
        pos = torch.cat([positions.to(pos), pos.expand(heads, -1)], dim=1)
    q_pos = torch.arange(row.computed, row.end, device=k.device)
    image, spot = (_at_tokens(known, pos) for known in (prompt.image, prompt.spot))
    pos, image, spot = (t.expand(heads, -1)[None] for t in (pos, image, spot))
    return Slots(
        pos=pos,
        q_pos=q_pos[None],
        image=image,
        spot=spot,
        q_image=_at_tokens(prompt.image, q_pos)[None],
        tokens=q_pos.new_tensor([row.budget]),
    )


def _at_tokens(known: Int[Tensor, "n"], tokens: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
    """Index ``known``, a value per prompt token, by these tokens; -1 for tokens of the answer."""
    last = len(known) - 1
    return known[tokens.clamp_max(last)].masked_fill(tokens > last, -1)


def _part(kept: pipeline.Kept, layer: Layer, heads: slice, tokens: int) -> KeptPairs:
    mask = kept.mask[0, heads]
    slots = mask.nonzero()[:, 1].view(len(mask), tokens)
    positions = layer.pos[0, heads].gather(1, slots)
    k, v = (t[0, heads][mask].view(len(mask), tokens, -1).transpose(0, 1) for t in (kept.k, kept.v))
    return KeptPairs(k, v, slots, positions, moved=kept.k is layer.k)
