"""What happens to a layer after each forward pass: observing, scoring, keeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.backends.hf.masks import over_slots
from foveate.core.compress import Kept, bytes_of_a_token, everything, keep, observed, score
from foveate.core.errors import InvalidInput
from foveate.core.layer import Layer
from foveate.core.protocols import Moment, Pruning

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer


def after_pass(owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float) -> None:
    """Shows the pass's queries to the policy, and compresses if the moment has come."""
    state, armed = owner.state, owner.armed
    rule = state.policy.when
    if not armed and not rule.decodes:
        return
    if not armed and isinstance(rule, Pruning):
        _prune(owner, rule)
        return
    _shown(owner, query, mask, scale, armed)


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _shown(
    owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float, armed: bool
) -> None:
    """Once a prompt, and where numbers decide what happens: nothing to trace."""
    with owner.watch.running(query.device):
        show(owner, layer_of(owner, query, mask, scale), armed)


def show(owner: FoveateLayer, layer: Layer, armed: bool) -> None:
    """Has the policy observe the layer, and compress it if the moment has come."""
    state = owner.state
    rule = state.policy.when
    owner.running = observed(state.policy, layer)
    if owner.running:
        layer = replace(layer, state=owner.running)
    layer = _with_window(owner, layer)
    unfinished = armed and state.prompt_end is not None and owner.seen < state.prompt_end
    goes_on = unfinished or (rule.decodes and not isinstance(rule, Pruning))
    owner.queries = _remembered(owner, layer) if goes_on else None
    if unfinished and not rule.reads:
        return
    if not unfinished:
        _refuse_empty_rows(layer)
    if armed and not unfinished:
        owner.finished = owner.seen
    _compress(owner, layer, armed and not unfinished)


def layer_of(owner: FoveateLayer, query: Tensor, mask: Tensor | None, scale: float) -> Layer:
    """The layer as stages see it, with this pass's queries."""
    state = owner.state
    sums, owner.sums = owner.sums, None
    facts = state.facts(mask, (query.shape[0], query.shape[2], owner.seen), query.device)
    k, v, columns = owner.padded()
    span = owner.seen - query.shape[2], owner.seen
    origins = state.origins.of(columns, owner.pairs.compressed, span, facts, state.images())
    return Layer(
        q=query.detach(),
        k=k.detach(),
        v=v.detach(),
        **origins._asdict(),
        mask=None if facts.causal else over_slots(mask, columns, owner.columns_of(query)),
        scale=scale,
        index=owner.place,
        model_index=owner.index,
        depth=state.depth,
        state=_running(owner, k.shape[2]),
        earlier=tuple(state.notes) if owner.place else (),
        column_sums=sums,
        window=owner.window,
        worked_out=state.worked_out,
    )


def _running(owner: FoveateLayer, slots: int) -> Mapping[str, Tensor]:
    """The running statistics, with zeros for the slots that are new."""
    return {
        name: torch.nn.functional.pad(t, (0, slots - t.shape[-1]))
        for name, t in owner.running.items()
    }


def _with_window(owner: FoveateLayer, layer: Layer) -> Layer:
    """The layer with queries of earlier passes where this pass is shorter than the window."""
    if owner.queries is None or layer.q.shape[2] >= (wanted := _wanted(owner, layer)):
        return layer
    if layer.mask is not None:
        raise InvalidInput(
            "the last pass of this prompt is shorter than the observation window and holds tokens "
            "that see later ones (images in a prefix). Pass the prompt in one piece."
        )
    q = torch.cat([owner.queries, layer.q], dim=2)[:, :, -wanted:]
    back = torch.arange(1 - q.shape[2], 1, device=q.device)
    images = owner.state.images()
    q_image = None if images is None else images[0].to(q.device)[:, owner.seen - 1 + back]
    return replace(layer, q=q, q_pos=layer.q_pos[:, -1:] + back, q_image=q_image)


def _remembered(owner: FoveateLayer, layer: Layer) -> Tensor | None:
    """The queries that a later pass may need, on their own: a view would hold all of them."""
    wanted = _wanted(owner, layer)
    return layer.q[:, :, -wanted:].clone() if wanted else None


def _wanted(owner: FoveateLayer, layer: Layer) -> int:
    """How many of the last queries the policy's score reads when the prompt is complete."""
    policy = owner.state.policy
    return policy.score.queries(int(_tokens(owner, layer).max()))


def _tokens(owner: FoveateLayer, layer: Layer) -> Int[Tensor, "b"]:
    """Each row's budget."""
    policy, pair_bytes = owner.state.policy, bytes_of_a_token(layer) * owner.state.depth
    return layer.once("tokens", lambda: (
        policy.tokens(prompt_lengths(owner, layer.lengths), pair_bytes)
    ), layer.lengths, policy, pair_bytes, _to_read(owner))  # fmt: skip


def prompt_lengths(owner: FoveateLayer, read: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Tokens of each row's whole prompt, however much of it (or beyond) was ``read``: its budget
    is that of the prompt.
    """
    return read + _to_read(owner)


def _to_read(owner: FoveateLayer) -> int:
    """Tokens of the prompt beyond those seen; negative where the answer has begun."""
    end = owner.state.prompt_end if owner.armed else owner.finished
    return 0 if end is None else end - owner.seen


def _refuse_empty_rows(layer: Layer) -> None:
    if layer.index == 0 and bool((layer.lengths < 1).any()):
        row = int((layer.lengths < 1).nonzero()[0, 0])
        raise InvalidInput(f"row {row} is nothing but padding.")


def _compress(owner: FoveateLayer, layer: Layer, prompt: bool) -> None:
    """Scores the layer and, if the rule says so, keeps what the policy keeps."""
    policy, state = owner.state.policy, owner.state
    tokens = _tokens(owner, layer)
    owner.full_bytes = layer.k.shape[0] * owner.seen * bytes_of_a_token(layer)
    moment = layer.once("moment", lambda: (
        _moment(owner, prompt, _kept_last(owner, tokens), layer.lengths)
    ), prompt, tokens, layer.pos, owner.kept, owner.finished)  # fmt: skip
    if not policy.when(moment):
        return
    scored = score(policy, layer, tokens)
    earlier = state.notes if owner.place else []
    state.notes = [*earlier, scored.scores.notes if scored else {}]
    if policy.scope == "model":
        state.wait_for_all(owner, scored)
    elif scored is not None:
        owner.hold(keep(policy, [scored])[0])
    if scored is None and not policy.store.exact:
        owner.hold(everything(layer))


def _kept_last(owner: FoveateLayer, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
    """What each head kept when the layer was compressed last; if it never was, its budget."""
    return tokens[:, None].expand_as(owner.pairs.counts) if owner.kept is None else owner.kept


def _moment(
    owner: FoveateLayer, prompt: bool, kept: Int[Tensor, "b h"], seen: Int[Tensor, "b"]
) -> Moment:
    stored = owner.pairs.counts
    return Moment(prompt, stored, seen, seen - (owner.seen - owner.finished), kept)


def _prune(owner: FoveateLayer, rule: Pruning) -> None:
    """Keeps the slots that the rule says, without looking at anything but their number."""
    if owner.kept is None or owner.state.pads is None:
        return  # the whole prompt fitted, so its share is everything
    pairs = owner.pairs
    pads = owner.state.pads.to(owner.kept.device)
    moment = _moment(owner, False, owner.kept, owner.seen - pads)
    if not rule(moment):
        return
    with owner.watch.running(owner.kept.device):
        padded = pairs.padded()
        mask = rule.keeps(moment, padded.k.shape[2]) & (padded.columns >= 0)
        owner.running = _running(owner, padded.k.shape[2])
        owner.prune(Kept(mask, None, padded.k, padded.v))
