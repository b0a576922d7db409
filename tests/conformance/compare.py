"""Runs a prompt compressed, and again on the oracle; both must agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import foveate
from foveate.backends.hf.internals import CACHE

from .oracle import Event, event_of, oracle

TOLERANCE = 2e-5
GREEDY: dict[str, Any] = {
    "max_new_tokens": 5,
    "do_sample": False,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def difference(ours: Any, theirs: Any) -> float:
    """Largest difference of the logits of two ``generate`` outputs with equal sequences."""
    assert torch.equal(ours.sequences, theirs.sequences)
    return max(
        float((a.float() - b.float()).abs().max())
        for a, b in zip(ours.logits, theirs.logits, strict=True)
    )


def check_generate(
    model: PreTrainedModel, policy: foveate.Policy, inputs: dict[str, Tensor], **how: Any
) -> Event:
    """``generate`` under the policy equals ``generate`` on the masked full cache."""
    settings = {**GREEDY, **how}
    with foveate.compress(model, policy), recorded(model, policy) as events:
        ours = model.generate(**inputs, **settings)
    assert something_was_evicted(events[0]), "this prompt is too short to test anything"
    with oracle(model, *events):
        theirs = model.generate(**inputs, **settings)
    assert difference(ours, theirs) <= TOLERANCE
    return events[0]


@contextmanager
def recorded(model: PreTrainedModel, policy: foveate.Policy) -> Iterator[list[Event]]:
    """Fills a list with what is kept of the prompt, and, where the policy goes on while decoding,
    with what is kept after every later pass.
    """
    events: list[Event] = []

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = kwargs[CACHE]
        first = next(layer for layer in cache.layers if hasattr(layer, "pairs"))
        if first.state.again is not None:
            return  # the policy asks the model something, on its own
        if not events and first.memory.finished:
            events.append(event_of(cache))
        elif events and policy.when.decodes:
            events.append(event_of(cache, now=True))

    hook = model.register_forward_hook(after, with_kwargs=True)
    try:
        yield events
    finally:
        hook.remove()


def something_was_evicted(event: Event) -> bool:
    """True if every compressed layer lost a column in some head."""
    return bool(event.kept) and all(not bool(kept.all()) for kept in event.kept.values())
