"""Runs a prompt compressed, and again on the oracle; both must agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import foveate
from foveate.hf.model.internals import CACHE
from tests import jitter
from tests.answers import DRAWN, certain

from .oracle import Event, event_of, oracle

TOLERANCE = 2e-5 + jitter.WIDER
GREEDY: dict[str, Any] = {
    "max_new_tokens": 5,
    "do_sample": False,
    "logits_processor": DRAWN,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def difference(ours: Any, theirs: Any, rows: Any = slice(None)) -> float:
    """Largest difference of the logits of two ``generate`` outputs with equal sequences; of these
    rows alone, a mask.
    """
    assert torch.equal(ours.sequences, theirs.sequences)
    apart = [(a.float() - b.float())[rows] for a, b in zip(ours.logits, theirs.logits, strict=True)]
    return max((float(one.abs().max()) for one in apart if one.numel()), default=0.0)


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


def difference_while_certain(ours: Any, theirs: Any) -> float:
    """The same of one row whose tokens the model chose itself: up to the first that it might have
    chosen otherwise.
    """
    assert theirs.sequences.shape[0] == 1
    sure = certain(theirs.logits)
    start = theirs.sequences.shape[1] - len(theirs.logits)
    assert torch.equal(ours.sequences[:, : start + sure], theirs.sequences[:, : start + sure])
    pairs = list(zip(ours.logits, theirs.logits, strict=True))[: sure + 1]
    return max(float((a - b).abs().max()) for a, b in pairs)


@contextmanager
def recorded(model: PreTrainedModel, policy: foveate.Policy) -> Iterator[list[Event]]:
    """Fills a list with what is kept of the prompt, and, where the policy goes on while decoding,
    with what is kept after every later pass.
    """
    events: list[Event] = []

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = kwargs[CACHE]
        first = next(layer for layer in cache.layers if hasattr(layer, "pairs"))
        if first.state.reread is not None:
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
