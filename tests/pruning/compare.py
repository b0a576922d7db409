"""Runs a prompt pruned, and again on the stock model, whose layers do not see the dropped keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import foveate
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find, layer_stacks
from foveate.hf.model.internals import CACHE, CACHE_NAMES
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned
from tests.conformance import compare
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import Event, oracle, tied_rows

BATCHES = {"alone": (40,), "left-padded": (23, 31, 40)}


@prunes("test_uneven")
@dataclass(frozen=True, kw_only=True)
class Uneven:
    """Keeps a part of the visual tokens that rows of different lengths do not have alike, and
    another before each of the layers ``at`` ("l02": 0 and 2): those whose position has a remainder
    that depends on the length and the layer. ``all`` drops every one of long rows.
    """

    at: str = "l0"
    all: bool = False

    def layers(self, depth: int) -> tuple[int, ...]:
        return tuple(int(one) for one in self.at.lstrip("l"))

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        longest = tokens.pos.amax(-1, keepdim=True)
        goes_on = (tokens.pos + tokens.layer) % (2 + longest % 5 + tokens.layer % 2) == 0
        return Pruned(goes_on & ((longest < 35) | (not self.all)))


def hidden_of(cache: Any) -> dict[int, Tensor]:
    """Of each layer that did not compute all tokens, which columns it did not."""
    found = {}
    for layer in cache.layers:
        if hasattr(layer, "pairs"):
            dropped = layer.state.tokens.dropped_before(layer.model_index, layer.seen)
            if dropped is not None:
                found[layer.model_index] = dropped.clone()
    return found


Rows = dict[int, list[tuple[Tensor, Tensor, Tensor]]]
"""Before which layer tokens took over others: their rows, their columns, and their states then."""


@contextmanager
def taking_over(stage: Any, pads: Tensor | Callable[[], Tensor]) -> Iterator[Rows]:
    """Notes the states that a prune stage has tokens go on with, where these are not their own;
    ``pads`` is the padding in front of each row, or says of a pass what its columns lack.
    """
    found: Rows = {}
    own = type(stage).__call__

    def noting(self: Any, tokens: EnteringTokens) -> Pruned:
        chosen = own(self, tokens)
        if chosen.hidden is not None:
            other = (chosen.hidden != tokens.hidden).any(-1) & chosen.goes_on & tokens.vision
            rows, places = other.nonzero(as_tuple=True)
            more = pads() if callable(pads) else pads
            columns = tokens.pos[rows, places] + more[rows]
            states = chosen.hidden[rows, places].clone()
            found.setdefault(tokens.layer, []).append((rows, columns, states))
        return chosen

    type(stage).__call__ = noting
    try:
        yield found
    finally:
        type(stage).__call__ = own


@contextmanager
def given(model: PreTrainedModel, rows: Rows) -> Iterator[None]:
    """Inside, the stock model reads its prompt with these states in the place of tokens' own, at
    once or pass by pass.
    """
    config = text_config(model)
    layers, decoder = model.get_submodule(layer_stacks(model, config)[0]), find(model, config)[0]

    first = 0  # the column at which a pass begins

    def states(hidden: Tensor, some: Any) -> Tensor:
        hidden = hidden.clone()
        for row, column, state in some:
            here = (column >= first) & (column < first + hidden.shape[1])
            hidden[row[here], column[here] - first] = state[here]
        return hidden

    def at_door(module: Any, args: Any, kwargs: Any) -> Any:
        nonlocal first
        caches = [kwargs[name] for name in CACHE_NAMES if kwargs.get(name) is not None]
        first = caches[0].get_seq_length() if caches else 0
        embeds = kwargs.get("inputs_embeds")
        if embeds is None or 0 not in rows:
            return None
        return args, {**kwargs, "inputs_embeds": states(embeds, rows[0])}

    def before(some: Any, module: Any, args: Any) -> Any:
        return (states(args[0], some), *args[1:])

    with ExitStack() as undo:
        undo.callback(decoder.register_forward_pre_hook(at_door, with_kwargs=True).remove)
        for layer, some in rows.items():
            if layer:
                hook = partial(before, some)
                undo.callback(layers[layer].register_forward_pre_hook(hook).remove)
        yield


@dataclass
class Read:
    """What was kept of a prompt, and while it was answered; what was not computed; and the states
    of tokens that took over others.
    """

    events: list[Event]
    hidden: Mapping[int, Tensor]
    rows: Rows = field(default_factory=dict)


@contextmanager
def recorded(model: PreTrainedModel, policy: foveate.Policy) -> Iterator[Read]:
    """Notes the first prompt that is read inside, before beams have moved its rows."""
    found = Read([], {})

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        found.hidden = found.hidden or hidden_of(kwargs[CACHE])

    hook = model.register_forward_hook(after, with_kwargs=True)
    try:
        with compare.recorded(model, policy) as found.events:
            yield found
    finally:
        hook.remove()


def check_pruned(
    model: PreTrainedModel, policy: foveate.Policy, inputs: dict[str, Tensor], **how: Any
) -> Read:
    """``generate`` equals that of the stock model, from which keys are hidden and evicted, and
    which is given the states with which tokens took over others; but for rows in which what is
    evicted has two kept keys that are equally near, and rounding decides into which it merges.
    """
    settings = {**GREEDY, **how}
    pads = (inputs["attention_mask"] == 0).sum(-1)
    pads = pads.repeat_interleave(settings.get("num_beams", 1))
    with (
        foveate.compress(model, policy),
        recorded(model, policy) as read,
        taking_over(policy.prune, pads) as read.rows,
    ):
        ours = model.generate(**inputs, **settings)
    assert read.hidden, "nothing was dropped"
    if policy.amount.everything:
        check_held(read)
    with oracle(model, *read.events, hidden=read.hidden), given(model, read.rows):
        theirs = model.generate(**inputs, **settings)
    tied = tied_rows(len(ours.logits[0]))
    assert not bool(tied.all()), "two kept keys are equally near in every row"
    assert difference(ours, theirs, ~tied) <= TOLERANCE
    return read


def check_held(read: Read) -> None:
    """Where nothing is evicted, a layer holds what it computed: the rest was not merely hidden."""
    pads = torch.tensor(read.events[0].pads or [0])[:, None]
    for layer, kept in read.events[0].kept.items():
        real = torch.arange(kept.shape[2]) >= pads
        hidden = read.hidden.get(layer, torch.zeros_like(real))
        assert torch.equal(kept & real[:, None], (real & ~hidden)[:, None].expand_as(kept))


def in_chunks(session: foveate.Session, inputs: Mapping[str, Tensor], ends: Sequence[int]) -> Any:
    """A prompt of embeddings, read chunk by chunk."""
    session.expect(ends[-1])
    cache, start = None, 0
    for end in ends:
        chunk = {
            "inputs_embeds": inputs["inputs_embeds"][:, start:end],
            "attention_mask": inputs["attention_mask"][:, :end],
        }
        cache = session.prefill(**chunk, **({} if cache is None else {CACHE: cache}))
        start = end
    return cache
