"""Decoding under ``torch.compile``: one graph, the same tokens, no new graph for every length."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo as dynamo

import foveate
from tests import zoo

STEPS = 8


def answered(forward, cache, token):
    """Logits of a few greedy steps."""
    logits = []
    for _ in range(STEPS):
        logits.append(forward(input_ids=token, past_key_values=cache).logits)
        token = logits[-1][:, -1:].argmax(-1)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("spec", ["snapkv:budget=20,window=4", "adakv:budget=20,window=4"])
@torch.no_grad()
def test_a_step_is_traced_whole_and_says_the_same(spec):
    """Traced by Dynamo and run as it is: what a backend would compile."""
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    dynamo.reset()
    dynamo.utils.counters.clear()
    with foveate.compress(model, spec) as session:
        cache = session.prefill(**inputs)
        token = inputs["input_ids"][:, -1:]
        expected = answered(model, session.fork(cache), token)
        compiled = torch.compile(model, backend="eager", dynamic=True)
        found = answered(compiled, session.fork(cache), token)
    counted = dynamo.utils.counters
    dynamo.reset()
    assert torch.equal(found, expected)
    assert not counted["graph_break"]
    assert counted["stats"]["unique_graphs"] < STEPS
