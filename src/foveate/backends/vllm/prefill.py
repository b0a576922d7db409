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
from foveate.core.reading import Pass, Remembered
from foveate.core.tensors import slots_of

Pairs = tuple[Float[Tensor, "1 h n d"], Float[Tensor, "1 h n e"]]


class Kept(NamedTuple):
    """Pairs that stay, ascending per head, and which positions of the prompt they had."""

    k: Float[Tensor, "k h d"]
    v: Float[Tensor, "k h e"]
    positions: Int[Tensor, "h k"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """A budget that keeps what the blocks hold that stay: ``tokens`` per KV head."""

    amount: Amount
    tokens: int
    scope: Scope = field(default="layer", init=False)

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Of this layer's heads together."""
        return torch.full_like(tokens, self.tokens * one.layer.k.shape[1])

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [torch.full_like(one.available, self.tokens) for one in scored]


def after_pass(
    prompts: Prompts,
    row: Row,
    ordinal: int,
    queries: Float[Tensor, "m hq d"],
    pairs: Callable[[int], Pairs],
    scale: float,
) -> Kept | None:
    """What is kept of a prompt that this pass has completed: keys, values, and positions.

    None while the prompt goes on, and of a prompt that stays whole. ``queries`` are all of the
    pass's, ``pairs(n)`` the layer's first n pairs of this request.
    """
    prompt, at = row.prompt, Pass(row.end, row.prompt.length)
    q = queries[row.start : row.start + row.end - row.computed].transpose(0, 1)[None]
    if not row.computed:
        prompt.reading.layers[ordinal] = Remembered()  # what was preempted is read again
    if row.end < prompt.length and not prompts.policy.running:
        wanted = prompts.policy.score.queries(row.budget)
        images = prompt.image[:, row.computed : row.end]
        prompt.reading.layers[ordinal].add(q, images, wanted)
        return None
    layer = _layer(prompts, row, ordinal, q, pairs(row.end), scale)
    tokens = prompt.length - row.freed
    given = Given(amount=prompts.policy.amount, tokens=tokens)
    found = prompt.reading.read(layer, at, layer.slots.available, budget=given).get(ordinal)
    return None if found is None or not row.freed else _moved(found, tokens)


def _layer(
    prompts: Prompts,
    row: Row,
    ordinal: int,
    q: Float[Tensor, "1 hq m d"],
    pairs: Pairs,
    scale: float,
) -> Layer:
    (k, v), end, prompt = pairs, row.end, row.prompt
    whole = slots_of(
        k, torch.zeros(1, dtype=torch.long), prompt.image[:, :end], prompt.spot[:, :end]
    )
    slots = whole.from_query(row.computed).with_budget(torch.tensor([row.budget], device=k.device))
    model_index, depth = prompts.model_indices[ordinal], len(prompts.ordinals)
    return Layer(
        q=q,
        k=k,
        v=v,
        slots=slots,
        scale=scale,
        ordinal=ordinal,
        model_index=model_index,
        depth=depth,
    )


def _moved(found: pipeline.Kept, tokens: int) -> Kept:
    mask = found.mask[0]
    where = mask.nonzero()[:, 1].view(len(mask), tokens)
    k, v = (t[0][mask].view(len(mask), tokens, -1).transpose(0, 1) for t in (found.k, found.v))
    return Kept(k, v, where)
