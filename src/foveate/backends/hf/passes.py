"""What happens to a layer after each forward pass: observing, scoring, keeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foveate.backends.hf.masks import over_slots
from foveate.core.compress import bytes_of_a_token, keep, observed, score
from foveate.core.errors import InvalidInput
from foveate.core.layer import Layer
from foveate.core.policy import Moment, Policy

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer


def after_pass(owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float) -> None:
    """Shows the pass's queries to the policy, and compresses if the moment has come."""
    state, armed = owner.state, owner.armed
    if not armed and not state.policy.when.decodes:
        return
    with owner.watch.running(query.device):
        layer = layer_of(owner, query, mask, scale)
        owner.running = observed(state.policy, layer)
        layer = _with_window(owner, replace(layer, state=owner.running))
        unfinished = armed and state.prompt_end is not None and owner.seen < state.prompt_end
        goes_on = unfinished or state.policy.when.decodes
        owner.queries = _remembered(layer, state.policy) if goes_on else None
        if unfinished:
            return
        _refuse_empty_rows(layer)
        _compress(owner, layer, armed)
    if armed:
        owner.finished = owner.seen


def layer_of(owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float) -> Layer:
    """The layer as stages see it, with this pass's queries."""
    state = owner.state
    facts = state.facts(mask, (query.shape[0], query.shape[2], owner.seen), query.device)
    padded, columns = owner.pairs.padded(), owner.columns_of(query)
    pads = facts.pads.to(query.device)  # layers may stand on several devices
    return Layer(
        q=query.detach(),
        k=padded.k,
        v=padded.v,
        pos=torch.where(padded.columns < 0, -1, padded.columns - pads[:, None, None]),
        q_pos=columns - pads[:, None],
        image=state.image_of(padded.columns),
        mask=None if facts.causal else over_slots(mask, padded.columns, columns),
        scale=scale,
        index=owner.place,
        depth=state.depth,
        state=_running(owner, padded.k.shape[2]),
        earlier=tuple(state.notes) if owner.place else (),
    )


def _running(owner: FoveateLayer, slots: int) -> Mapping[str, Tensor]:
    """The running statistics, with zeros for the slots that are new."""
    return {
        name: torch.nn.functional.pad(t, (0, slots - t.shape[-1]))
        for name, t in owner.running.items()
    }


def _with_window(owner: FoveateLayer, layer: Layer) -> Layer:
    """The layer with queries of earlier passes where this pass is shorter than the window."""
    wanted, m = owner.state.policy.score.queries, layer.q.shape[2]
    if owner.queries is None or m >= wanted:
        return layer
    if layer.mask is not None:
        raise InvalidInput(
            "the last pass of this prompt is shorter than the observation window and holds tokens "
            "that see later ones (images in a prefix). Pass the prompt in one piece."
        )
    q = torch.cat([owner.queries, layer.q], dim=2)[:, :, -wanted:]
    back = torch.arange(1 - q.shape[2], 1, device=q.device)
    return replace(layer, q=q, q_pos=layer.q_pos[:, -1:] + back)


def _remembered(layer: Layer, policy: Policy) -> Tensor | None:
    """The queries that a later pass may need, on their own: a view would hold all of them."""
    wanted = policy.score.queries
    return layer.q[:, :, -wanted:].clone() if wanted else None


def _refuse_empty_rows(layer: Layer) -> None:
    if layer.index == 0 and bool((layer.lengths < 1).any()):
        row = int((layer.lengths < 1).nonzero()[0, 0])
        raise InvalidInput(f"row {row} is nothing but padding.")


def _compress(owner: FoveateLayer, layer: Layer, prompt: bool) -> None:
    """Scores the layer and, if the rule says so, keeps what the policy keeps."""
    policy, state = owner.state.policy, owner.state
    pair_bytes = bytes_of_a_token(layer) * state.depth
    tokens = policy.amount.tokens(layer.lengths, pair_bytes)
    owner.full_bytes = layer.k.shape[0] * owner.seen * bytes_of_a_token(layer)
    if not policy.when(Moment(prompt, owner.pairs.longest, int(tokens.min()))):
        return
    scored = score(policy, layer, tokens)
    earlier = state.notes if owner.place else []
    state.notes = [*earlier, scored.scores.notes if scored else {}]
    if policy.scope == "model":
        state.wait_for_all(owner, scored, pair_bytes)
    elif scored is not None:
        owner.hold(keep(policy, [scored], pair_bytes)[0])
