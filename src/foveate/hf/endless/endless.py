"""A prompt that never ends: what it has forgotten is counted no more, so that a pass takes the same
time and memory however much was read before.

A cache counts every token that it has seen as a column. Of an endless prompt most columns are held
by no head of any layer: they are taken out, and those that are left are numbered anew, in order.
Positions stay: the model is told how many tokens were forgotten.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.pairs import Renumbered, RewrittenPairs
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
