"""Runs a prompt compressed, and again on the oracle; both must agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import foveate

from .oracle import Event, event_of, oracle

TOLERANCE = 1e-5
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
    with foveate.compress(model, policy) as session:
        ours = model.generate(**inputs, **settings)
        event = event_of(session.cache)
    assert something_was_evicted(event), "this prompt is too short to test anything"
    with oracle(model, event):
        theirs = model.generate(**inputs, **settings)
    assert difference(ours, theirs) <= TOLERANCE
    return event


def something_was_evicted(event: Event) -> bool:
    """True if every compressed layer lost a column in some head."""
    return bool(event.kept) and all(not bool(kept.all()) for kept in event.kept.values())
