"""Endless prompts: forgotten tokens no longer count, so that a pass takes the same time and memory
however much was read before.

A cache counts every token that it has seen as a column. In an endless prompt most columns are
stored by no head of any layer: they are removed, and the others are renumbered, in order. Positions
stay: the model's positions are shifted by the number of forgotten tokens.

Evicted pairs can be restored at their original positions in the prompt, and the keys and values of
a pass can be collected for storage elsewhere (offload). As positions are the original ones,
restored keys need no rotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.pairs import Pairs, Renumbered, RewrittenPairs, store
from foveate.cache.tokens import Images
from foveate.errors import InvalidBudget, InvalidParameter
from foveate.hf.layer.state import Link
from foveate.hf.layer.support import convert, foveate_layers, known_state, text_config
from foveate.hf.model.devices import input_device
from foveate.policies.parameters import Positive, check
from foveate.policies.policy import Policy
from foveate.stages.when import OverBudget

END = 2**31 - 1
"""Column at which an endless prompt ends."""


EVERY = 256
"""Default number of pairs by which heads may exceed their budget before they are compressed."""


def endless(policy: Policy, every: int | None) -> Policy:
    """Return the policy, compressing between the passes of its prompt: whenever the heads store
    ``every`` pairs more than their budget (None: as many as its own rule says, or 256).

    Raises:
        InvalidBudget: a share of a prompt that never ends.
        InvalidParameter: ``every`` below 1, or together with a rule that decides when it
            compresses; a score that reads the complete prompt again, or a rule without scores.
    """
    check({"every": Positive | None}, {"every": every})
    if policy.amount.kind not in ("tokens", "bytes"):
        raise InvalidBudget(
            f"budget {policy.amount} is a share of a prompt that never ends. Give a number of "
            "tokens (4096) or bytes (64MB)."
        )
    if policy.left_open:
        raise InvalidParameter(
            f"{policy} divides one budget by a prompt's length, and this one never ends. Write its "
            "shares out instead of auto, such as bits=4."
        )
    score = policy.reads_again
    if (unable := score if score and score.reading.prompt else policy.prunes) is not None:
        raise InvalidParameter(
            f"{unable!r} needs a prompt that ends. Use a policy that can compress while it reads, "
            "such as 'infinipotv:budget=4096' or 'snapkv:budget=4096'."
        )
    when, own = policy.when, isinstance(policy.when, OverBudget)
    if when.reads and every is None:
        return policy
    if when.reads and not own:
        raise InvalidParameter(
            f"every={every} has no effect: {policy} compresses by {when!r}. Leave every= out."
        )
    by_rule = when.every if isinstance(when, OverBudget) else EVERY
    pairs = by_rule if every is None else every
    return policy.but(when=OverBudget(every=pairs, reading=True, answering=when.decodes))


def begun(model: PreTrainedModel, policy: Policy, link: Link) -> DynamicCache:
    """Return an empty cache of one row, whose prompt never ends."""
    cache: DynamicCache = DynamicCache(config=model.config)
    convert(cache, text_config(model), policy, link).arm(END)
    empty = torch.empty(1, 0, dtype=torch.long, device=input_device(model))
    go_on(cache, (empty, empty))
    return cache


def say_images(cache: DynamicCache, coming: Images) -> None:
    """Set image and slot of each token of the next pass, [1, t] each. Without this call, a pass's
    tokens are text.
    """
    known_state(cache).update_turn(coming=coming)


def go_on(cache: DynamicCache, images: Images) -> None:
    """Make the cache's prompt endless. ``images``: image and slot of all tokens seen."""
    state = known_state(cache)
    state.update_turn(end=END, awaiting=False)
    state.update_tokens(image=images[0], slot=images[1])
    for layer in foveate_layers(cache):
        layer.memory.finished = 0


def finish(cache: DynamicCache) -> None:
    """End the cache's prompt at its latest token: later tokens are an answer's."""
    state = known_state(cache)
    state.update_turn(end=None, awaiting=False)
    for layer in foveate_layers(cache):
        layer.memory.finished = layer.seen


def held_columns(cache: DynamicCache) -> Bool[Tensor, "seen"] | None:
    """Return a mask of the columns that some head of some layer stores; None if a layer cannot
    renumber its columns.
    """
    layers = foveate_layers(cache)
    if len(layers) < len(cache.layers):
        return None
    stored = torch.zeros(layers[0].seen, dtype=torch.bool, device=layers[0].pairs.columns.device)
    for layer in layers:
        layer.in_order()
        if not isinstance(layer.pairs, Renumbered) or isinstance(layer.pairs, RewrittenPairs):
            return None
        columns = layer.pairs.columns.to(stored.device)
        stored[columns[columns >= 0]] = True
    return stored


def forget(cache: DynamicCache) -> Bool[Tensor, "seen"] | None:
    """Remove the columns that no head stores, and renumber the others. Return the mask of the
    columns that stay; None if all stay, or a layer cannot renumber them.
    """
    stored = held_columns(cache)
    if stored is None or bool(stored.all()):
        return None
    state, layers = known_state(cache), foveate_layers(cache)
    table = torch.cat([stored.long().cumsum(0) - stored.long(), stored.sum()[None]])
    removed = len(stored) - int(table[-1])
    for layer in layers:
        pairs = layer.pairs
        if isinstance(pairs, Renumbered):
            pairs.renumber(table.to(layer.pairs.columns.device))
        layer.seen -= removed
        layer.at = layer.at._replace(seen=layer.seen)
    state.tokens = state.tokens.drop(stored)
    state.view = None
    return stored


@dataclass
class Made:
    """Tensors that a pass computes, by ordinal of the layer: new keys and values, and optionally
    queries. ``positions`` are the positions of all tokens that the cache then counts, if they are
    recorded. ``expanded`` are keys of layers that store latents.
    """

    k: dict[int, Float[Tensor, "1 h t d"]] = field(default_factory=dict)
    v: dict[int, Float[Tensor, "1 h t e"]] = field(default_factory=dict)
    q: dict[int, Float[Tensor, "1 hq t d"]] | None = None
    positions: Int[Tensor, "axes seen"] | None = None
    expanded: dict[int, Float[Tensor, "1 hq t d"]] = field(default_factory=dict)


@contextmanager
def looked_at(cache: DynamicCache, collected: Made | None) -> Iterator[None]:
    """Collect in ``collected`` the tensors of the latest pass inside the context, probe passes
    excepted.
    """
    state = known_state(cache)
    try:
        state.collected = collected
        yield
        if collected is not None:
            collected.positions = state.tokens.position
    finally:
        state.collected = None


class Back(NamedTuple):
    """Pairs of one layer to restore. ``tokens``: their indices in the prompt, ascending."""

    tokens: Int[Tensor, "f"]
    k: Float[Tensor, "1 h f d"]
    v: Float[Tensor, "1 h f e"]


class Returning(NamedTuple):
    """Pairs of all layers to restore: ``tokens`` are those of any layer, with ``image`` and
    ``spot`` of each; ``layers`` are by ordinal.
    """

    tokens: Int[Tensor, "u"]
    image: Int[Tensor, "u"]
    spot: Int[Tensor, "u"]
    layers: Sequence[Back]


def put_back(cache: DynamicCache, indices: Int[Tensor, "seen"], returning: Returning) -> None:
    """Restore pairs beside the stored ones; where a layer stores a token's pair for some heads, or
    merged with others, the restored pair replaces it.

    Args:
        cache: an endless cache of one row.
        indices: for each column, the index of its token in the prompt.
        returning: the pairs to restore.
    """
    state = known_state(cache)
    all_indices = torch.unique(torch.cat([indices, returning.tokens]))
    table = torch.searchsorted(all_indices, indices)
    added = len(all_indices) - len(indices)
    for layer, back in zip(foveate_layers(cache), returning.layers, strict=True):
        layer.in_order()
        columns = torch.searchsorted(all_indices, back.tokens)
        layer.replace_pairs(_join(layer.pairs, table, back, columns, len(all_indices)))
        layer.seen += added
        layer.at = layer.at._replace(seen=layer.seen)
    columns = torch.searchsorted(all_indices, returning.tokens)
    state.tokens = state.tokens.concat(
        (returning.image[None], returning.spot[None]), table, columns
    )
    state.view = None


def _join(
    pairs: Pairs, table: Int[Tensor, "seen"], back: Back, new_columns: Int[Tensor, "f"], end: int
) -> Pairs:
    """Return the stored and the restored pairs, sorted by column; ``new_columns`` are the columns
    of the restored ones.
    """
    k, v, columns = pairs.padded()
    table, new_columns = table.to(k.device), new_columns.to(k.device)
    columns = torch.where(columns < 0, -1, table[columns.clamp_min(0)])
    columns = columns.masked_fill(torch.isin(columns, new_columns), -1)
    columns = torch.cat([columns, new_columns.expand(*columns.shape[:2], -1)], dim=2)
    order = columns.argsort(dim=-1, stable=True)
    k, v = (torch.cat([x, new.to(x)], dim=2) for x, new in ((k, back.k), (v, back.v)))
    k, v = (x.gather(2, order[..., None].expand(*order.shape, x.shape[3])) for x in (k, v))
    columns = columns.gather(2, order)
    return store(k, v, columns, columns >= 0, end)
