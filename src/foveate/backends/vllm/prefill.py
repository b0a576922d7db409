"""A layer of one prompt, as a policy sees it: remembered between passes, compressed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.backends.vllm.prompts import Prompts, Row
from foveate.core import pipeline
from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scored
from foveate.core.protocols import Scope
from foveate.core.reading import Pass, Phase, Remembered
from foveate.core.tensors import slots_of

Pairs = tuple[Float[Tensor, "1 h n d"], Float[Tensor, "1 h n e"]]


class Kept(NamedTuple):
    """Pairs of a cell that stay, ascending per head, and which positions of the prompt they had.

    ``moved`` says that they are the prompt's own, and not merged with others.
    """

    k: Float[Tensor, "k h d"]
    v: Float[Tensor, "k h e"]
    positions: Int[Tensor, "h k"]
    moved: bool


@dataclass(frozen=True, kw_only=True)
class Given:
    """A budget that keeps what the blocks hold that stay: ``tokens`` of each KV head."""

    amount: Amount
    tokens: tuple[int, ...]
    scope: Scope = field(default="layer", init=False)

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Of this layer's heads together."""
        return torch.full_like(tokens, sum(self.tokens))

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [one.available.new_tensor(self.tokens).expand_as(one.available) for one in scored]


def after_pass(
    prompts: Prompts,
    cells: Sequence[Row],
    ordinal: int,
    queries: Float[Tensor, "m hq d"],
    pairs: Callable[[int], Pairs],
    scale: float,
) -> list[Kept] | None:
    """What is kept of a prompt that this pass has completed, of each cell: the layer's only one, or
    its KV heads.

    None while the prompt goes on, and of a prompt that stays whole. ``queries`` are all of the
    pass's, ``pairs(n)`` the layer's first n pairs of this request.
    """
    row = cells[0]
    prompt, new = row.prompt, row.end - row.computed
    at = Pass.of(prompt.length, row.computed, new)
    q = queries[row.start : row.start + new].transpose(0, 1)[None]
    if not row.computed:
        prompt.reading.layers[ordinal] = Remembered()  # what was preempted is read again
    if at.phase is Phase.READING and not prompt.policy.running:
        wanted = prompt.policy.score.queries(row.budget)
        images = prompt.image[:, row.computed : row.end]
        prompt.reading.layers[ordinal].add(q, images, wanted)
        return None
    layer = _layer(prompts, row, ordinal, q, pairs(row.end), scale)
    heads = layer.k.shape[1] // len(cells)
    each = tuple(cell.kept for cell in cells for _ in range(heads))
    given = Given(amount=prompt.policy.amount, tokens=each)
    found = prompt.reading.read(layer, at, layer.slots.available, budget=given).get(ordinal)
    if found is None or not any(cell.gap for cell in cells):
        return None
    moved = found.k is layer.k
    return [
        _part(found, slice(i * heads, (i + 1) * heads), cell.kept, moved)
        for i, cell in enumerate(cells)
    ]


def _layer(
    prompts: Prompts,
    row: Row,
    ordinal: int,
    q: Float[Tensor, "1 hq m d"],
    pairs: Pairs,
    scale: float,
) -> Layer:
    (k, v), end, prompt = pairs, row.end, row.prompt
    pads, budget = (k.new_tensor([number], dtype=torch.long) for number in (0, row.budget))
    whole = slots_of(k, pads, prompt.image[:, :end], prompt.spot[:, :end])
    slots = whole.from_query(row.computed).with_budget(budget)
    return Layer(
        q=q,
        k=k,
        v=v,
        slots=slots,
        scale=scale,
        ordinal=ordinal,
        model_index=prompts.model_indices[ordinal],
        depth=len(prompts.ordinals),
    )


def _part(found: pipeline.Kept, heads: slice, tokens: int, moved: bool) -> Kept:
    mask = found.mask[0, heads]
    where = mask.nonzero()[:, 1].view(len(mask), tokens)
    k, v = (
        t[0, heads][mask].view(len(mask), tokens, -1).transpose(0, 1) for t in (found.k, found.v)
    )
    return Kept(k, v, where, moved)
