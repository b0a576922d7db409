"""A layer of one request, as a policy sees it: remembered between passes, compressed at the end of
its prompt, and at its other boundaries.
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
from foveate.compression.between_passes import Pass, Phase, Remembered
from foveate.errors import FoveateError
from foveate.policies.amount import Amount
from foveate.policies.protocols import Scope
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rows import Row

Pairs = tuple[Float[Tensor, "1 h n d"], Float[Tensor, "1 h n e"]]


class KeptPairs(NamedTuple):
    """Pairs of a cell that stay, ascending per head: in which of the ``slots`` that were held they
    stood, and which ``positions`` in the request they have.

    ``moved`` says that they are the request's own, and not merged with others.
    """

    k: Float[Tensor, "k h d"]
    v: Float[Tensor, "k h e"]
    slots: Int[Tensor, "h k"]
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
    pairs: Callable[[], Pairs],
    scale: float,
) -> list[KeptPairs] | None:
    """Return what is kept of a request that this pass has brought to a boundary, of each cell: the
    layer's only one, or its KV heads.

    None on the way there, and of a prompt that stays whole. ``queries`` are all of the pass's,
    ``pairs()`` what the layer holds of this request.
    """
    row = cells[0]
    prompt = row.prompt
    q = queries[row.start : row.start + row.new].transpose(0, 1)[None]
    if not row.computed:
        prompt.reading.layers[ordinal] = Remembered()  # what was preempted is read again
        prompt.places.pop(ordinal, None)
    if row.end < row.until and not prompt.policy.running:
        wanted = prompt.policy.score.queries(row.budget)
        images = _of_tokens(prompt.image, torch.arange(row.computed, row.end, device=q.device))
        prompt.reading.layers[ordinal].add(q, images[None], wanted)
        return None
    k, v = pairs()
    slots, depth = _slots_of(prompts, row, k, ordinal), len(prompts.ordinals)
    index = prompts.model_indices[ordinal]
    layer = Layer(
        q=q, k=k, v=v, slots=slots, scale=scale, ordinal=ordinal, model_index=index, depth=depth
    )
    heads = layer.k.shape[1] // len(cells)
    each = tuple(cell.kept for cell in cells for _ in range(heads))
    given = Given(amount=prompt.policy.amount, tokens=each)
    stored = layer.slots.available
    kept_by_row = prompt.reading.read(layer, _at(row), stored, budget=given).get(ordinal)
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
        prompt.places[ordinal] = torch.cat([one.positions for one in kept]).int()
    return kept


def _at(row: Row) -> Pass:
    """Where a pass stands. One that ends before its boundary reads on, of an answer as well: its
    queries are seen, and nothing is compressed.
    """
    length, phase = row.prompt.length, Phase.READING
    if row.end == row.until and row.until >= length:
        phase = Phase.FINISHING if row.until == length else Phase.ANSWERING
    return Pass(row.end, length, phase)


def _slots_of(prompts: Prompts, row: Row, k: Float[Tensor, "1 h n d"], ordinal: int) -> Slots:
    """Return the slots of a request in a pass, which are one object for all layers that hold the
    same: as long as nothing has left, these are all. Nobody needs them after the last layer.
    """
    prompt, places = row.prompt, row.prompt.places.get(ordinal)
    if places is not None:
        return _slots(row, k, places)
    key = (row.computed, row.end, row.budget, *k.shape[1:3])
    made = prompt.slots
    if made is None or made[0] != key:
        made = key, _slots(row, k, None)
    prompt.slots = None if ordinal == len(prompts.ordinals) - 1 else made
    return made[1]


def _slots(row: Row, k: Float[Tensor, "1 h n d"], places: Int[Tensor, "h k"] | None) -> Slots:
    """Those of a request of which the pairs at ``places`` were kept; all, where there are none."""
    (heads, n), prompt = k.shape[1:3], row.prompt
    kept = 0 if places is None else places.shape[1]
    pos = torch.arange(row.end - (n - kept), row.end, device=k.device)[None]
    if places is not None:
        pos = torch.cat([places.to(pos), pos.expand(heads, -1)], dim=1)
    q_pos = torch.arange(row.computed, row.end, device=k.device)
    image, spot = (_of_tokens(known, pos) for known in (prompt.image, prompt.spot))
    pos, image, spot = (t.expand(heads, -1)[None] for t in (pos, image, spot))
    return Slots(
        pos=pos,
        q_pos=q_pos[None],
        image=image,
        spot=spot,
        q_image=_of_tokens(prompt.image, q_pos)[None],
        tokens=q_pos.new_tensor([row.budget]),
    )


def _of_tokens(known: Int[Tensor, "n"], tokens: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
    """Return what is known of these tokens of a request; -1 of its answer, which is text."""
    last = len(known) - 1
    return known[tokens.clamp_max(last)].masked_fill(tokens > last, -1)


def _part(kept: pipeline.Kept, layer: Layer, heads: slice, tokens: int) -> KeptPairs:
    mask = kept.mask[0, heads]
    slots = mask.nonzero()[:, 1].view(len(mask), tokens)
    positions = layer.pos[0, heads].gather(1, slots)
    k, v = (t[0, heads][mask].view(len(mask), tokens, -1).transpose(0, 1) for t in (kept.k, kept.v))
    return KeptPairs(k, v, slots, positions, moved=kept.k is layer.k)
