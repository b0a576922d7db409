"""A layer of one prompt, as a policy sees it: remembered between passes, compressed at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from foveate.backends.vllm.prompts import Prompts, Row, Unfinished
from foveate.core.amount import Amount
from foveate.core.compress import keep, observed, score
from foveate.core.layer import Layer, Scored
from foveate.core.protocols import Scope

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
    place: int,
    queries: Float[Tensor, "m hq d"],
    pairs: Callable[[int], Pairs],
    scale: float,
) -> Kept | None:
    """What is kept of a prompt that this pass has completed: keys, values, and positions.

    None while the prompt goes on, and of a prompt that stays whole. ``queries`` are all of the
    pass's, ``pairs(n)`` the layer's first n pairs of this request.
    """
    policy, prompt = prompts.policy, row.prompt
    q = queries[row.start : row.start + row.end - row.computed].transpose(0, 1)[None]
    before = prompt.unfinished.get(place) if row.computed else None
    finished = row.end == prompt.length
    running = bool(policy.running)
    wanted = policy.score.queries(row.budget)
    state: Mapping[str, Tensor] = {}
    layer: Layer | None = None
    if running or finished:
        layer = _layer(prompts, row, place, q, pairs(row.end), scale, before)
        state = observed(policy, layer)
    if before is not None and before.queries is not None:
        q = torch.cat([before.queries, q], dim=2)
    if layer is None or not finished:
        prompt.unfinished[place] = Unfinished(q[:, :, -wanted:].clone() if wanted else None, state)
        return None
    prompt.unfinished.pop(place, None)
    if layer.q.shape[2] < wanted:
        layer = _with_queries(layer, q[:, :, -wanted:], row)
    return _kept(prompts, row, replace(layer, state=state))


def _layer(
    prompts: Prompts,
    row: Row,
    place: int,
    q: Float[Tensor, "1 hq m d"],
    pairs: Pairs,
    scale: float,
    before: Unfinished | None,
) -> Layer:
    (k, v), end, prompt, device = pairs, row.end, row.prompt, q.device
    slots = k.shape[:3]
    state = {} if before is None else before.state
    return Layer(
        q=q,
        k=k,
        v=v,
        pos=torch.arange(end, device=device)[None, None].expand(slots),
        q_pos=torch.arange(row.computed, end, device=device)[None],
        image=prompt.image[:, None, :end].expand(slots),
        spot=prompt.spot[:, None, :end].expand(slots),
        q_image=prompt.image[:, row.computed : end],
        scale=scale,
        index=place,
        model_index=prompts.model_indices[place],
        depth=len(prompts.places),
        state={name: pad(t, (0, end - t.shape[-1])) for name, t in state.items()},
        earlier=tuple(prompt.notes) if place else (),
    )


def _with_queries(layer: Layer, q: Float[Tensor, "1 hq m d"], row: Row) -> Layer:
    """The layer with queries of earlier passes, where this one is shorter than the window."""
    first = row.end - q.shape[2]
    return replace(layer, q=q, q_pos=torch.arange(first, row.end, device=q.device)[None],
                   q_image=row.prompt.image[:, first : row.end])  # fmt: skip


def _kept(prompts: Prompts, row: Row, layer: Layer) -> Kept | None:
    scored = score(prompts.policy, layer, torch.tensor([row.budget], device=layer.k.device))
    notes = scored.scores.notes if scored else {}
    row.prompt.notes = [*(row.prompt.notes if layer.index else ()), notes]
    if scored is None or not row.freed:
        return None
    tokens = row.prompt.length - row.freed
    as_freed = replace(prompts.policy, budget=Given(amount=prompts.policy.amount, tokens=tokens))
    kept = keep(as_freed, [scored])[0]
    mask = kept.mask[0]
    where = mask.nonzero()[:, 1].view(len(mask), tokens)
    k, v = (t[0][mask].view(len(mask), tokens, -1).transpose(0, 1) for t in (kept.k, kept.v))
    return Kept(k, v, where)
