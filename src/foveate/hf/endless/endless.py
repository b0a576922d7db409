"""A prompt that never ends: what it has forgotten is counted no more, so that a pass takes the same
time and memory however much was read before.

A cache counts every token that it has seen as a column. Of an endless prompt most columns are held
by no head of any layer: they are taken out, and those that are left are numbered anew, in order.
Positions stay: the model is told how many tokens were forgotten.

Pairs that had left can be put back at the places in the prompt at which they stood, and what a pass
makes is shown to whoever wants to keep it elsewhere. Positions are the true ones, so keys are put
back as they were made.
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
"""The column at which a prompt ends that never does."""


EVERY = 256
"""Pairs by which heads outgrow their budget, where nothing says otherwise."""


def endless(policy: Policy, every: int | None) -> Policy:
    """The policy, compressing between the passes of its prompt: whenever the heads hold ``every``
    pairs more than their budget (None: as many as its own rule says, or 256).

    Raises:
        InvalidBudget: a share of a prompt that never ends.
        InvalidParameter: ``every`` below 1, or beside a rule that says when it compresses; a score
            that reads the whole prompt again, or a rule without scores.
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
            f"{unable!r} needs a prompt that ends. Take a policy that can compress while it reads, "
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
    each = by_rule if every is None else every
    return policy.but(when=OverBudget(every=each, reading=True, answering=when.decodes))


def begun(model: PreTrainedModel, policy: Policy, link: Link) -> DynamicCache:
    """An empty cache of one row, whose prompt never ends."""
    cache: DynamicCache = DynamicCache(config=model.config)
    convert(cache, text_config(model), policy, link).arm(END)
    none = torch.empty(1, 0, dtype=torch.long, device=input_device(model))
    go_on(cache, (none, none))
    return cache


def say_images(cache: DynamicCache, coming: Images) -> None:
    """Says the image and the spot of each token of the next pass, [1, t] each; those of a pass of
    which nothing is said are text.
    """
    known_state(cache).update_turn(coming=coming)


def go_on(cache: DynamicCache, images: Images) -> None:
    """Has the cache's prompt go on for ever; ``images`` are those of all tokens seen."""
    state = known_state(cache)
    state.update_turn(end=END, awaiting=False)
    state.update_tokens(image=images[0], slot=images[1])
    for layer in foveate_layers(cache):
        layer.memory.finished = 0


def finish(cache: DynamicCache) -> None:
    """Ends the cache's prompt where it stands: what comes next is answered."""
    state = known_state(cache)
    state.update_turn(end=None, awaiting=False)
    for layer in foveate_layers(cache):
        layer.memory.finished = layer.seen


def held_columns(cache: DynamicCache) -> Bool[Tensor, "seen"] | None:
    """True at the columns that some head of some layer holds; None where a layer cannot count its
    columns anew.
    """
    layers = foveate_layers(cache)
    if len(layers) < len(cache.layers):
        return None
    held = torch.zeros(layers[0].seen, dtype=torch.bool, device=layers[0].pairs.columns.device)
    for layer in layers:
        layer.in_order()
        if not isinstance(layer.pairs, Renumbered) or isinstance(layer.pairs, RewrittenPairs):
            return None
        columns = layer.pairs.columns.to(held.device)
        held[columns[columns >= 0]] = True
    return held


def forget(cache: DynamicCache) -> Bool[Tensor, "seen"] | None:
    """Counts what nobody holds no more. Returns which of the columns stay; None if all do, as far
    as anybody knows.
    """
    held = held_columns(cache)
    if held is None or bool(held.all()):
        return None
    state, layers = known_state(cache), foveate_layers(cache)
    table = torch.cat([held.long().cumsum(0) - held.long(), held.sum()[None]])
    gone = len(held) - int(table[-1])
    for layer in layers:
        pairs = layer.pairs
        if isinstance(pairs, Renumbered):
            pairs.renumber(table.to(layer.pairs.columns.device))
        layer.seen -= gone
        layer.at = layer.at._replace(seen=layer.seen)
    state.tokens = state.tokens.drop(held)
    state.view = None
    return held


@dataclass
class Made:
    """What a pass makes, by ordinal of the layer: new keys and values, and perhaps queries.
    ``places`` are the positions of all tokens that the cache then counts, if they are noted.
    """

    k: dict[int, Float[Tensor, "1 h t d"]] = field(default_factory=dict)
    v: dict[int, Float[Tensor, "1 h t e"]] = field(default_factory=dict)
    q: dict[int, Float[Tensor, "1 hq t d"]] | None = None
    places: Int[Tensor, "axes seen"] | None = None


@contextmanager
def looked_at(cache: DynamicCache, made: Made | None) -> Iterator[None]:
    """Fills in what the latest pass inside makes, but for those that do not stay."""
    state = known_state(cache)
    try:
        state.made = made
        yield
        if made is not None:
            made.places = state.tokens.position
    finally:
        state.made = None


class Back(NamedTuple):
    """Pairs of one layer that are put back: ``tokens`` are their places in the prompt, in order."""

    tokens: Int[Tensor, "f"]
    k: Float[Tensor, "1 h f d"]
    v: Float[Tensor, "1 h f e"]


class Returning(NamedTuple):
    """All that is put back: ``tokens`` are those of any layer, with the image and the spot of each;
    ``layers`` are by ordinal.
    """

    tokens: Int[Tensor, "u"]
    image: Int[Tensor, "u"]
    spot: Int[Tensor, "u"]
    layers: Sequence[Back]


def put_back(cache: DynamicCache, held: Int[Tensor, "seen"], returning: Returning) -> None:
    """Has the layers hold what is found beside what they hold; of a token that a layer holds in
    part, or merged with others, what is found.

    Args:
        cache: whose prompt goes on, with one row.
        held: for each column, the place of its token in the prompt, counted from its beginning.
        returning: what is put back.
    """
    state = known_state(cache)
    whole = torch.unique(torch.cat([held, returning.tokens]))
    table = torch.searchsorted(whole, held)
    came = len(whole) - len(held)
    for layer, back in zip(foveate_layers(cache), returning.layers, strict=True):
        layer.in_order()
        columns = torch.searchsorted(whole, back.tokens)
        layer.put(_joined(layer.pairs, table, back, columns, len(whole)))
        layer.seen += came
        layer.at = layer.at._replace(seen=layer.seen)
    columns = torch.searchsorted(whole, returning.tokens)
    state.tokens = state.tokens.concat(
        (returning.image[None], returning.spot[None]), table, columns
    )
    state.view = None


def _joined(
    pairs: Pairs, table: Int[Tensor, "seen"], back: Back, places: Int[Tensor, "f"], end: int
) -> Pairs:
    """What is held and what comes, in order; ``places`` are the columns of what comes."""
    k, v, columns = pairs.padded()
    table, places = table.to(k.device), places.to(k.device)
    columns = torch.where(columns < 0, -1, table[columns.clamp_min(0)])
    columns = columns.masked_fill(torch.isin(columns, places), -1)
    columns = torch.cat([columns, places.expand(*columns.shape[:2], -1)], dim=2)
    order = columns.argsort(dim=-1, stable=True)
    k, v = (torch.cat([x, new.to(x)], dim=2) for x, new in ((k, back.k), (v, back.v)))
    k, v = (x.gather(2, order[..., None].expand(*order.shape, x.shape[3])) for x in (k, v))
    columns = columns.gather(2, order)
    return store(k, v, columns, columns >= 0, end)
