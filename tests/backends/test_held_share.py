"""How widely a token is held, counted one pair after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foveate
from foveate.stages.score import RandomScore
from foveate.stages.select import TopK
from tests import zoo
from tests.conformance.budgets import RandomHeads

POLICIES = {
    "full": "full",
    "dense": "random:budget=40%",
    "ragged": foveate.Policy(
        score=RandomScore(seed=1), budget=RandomHeads(amount="40%"), select=TopK(recent=2)
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_it_counts_the_heads_that_hold_a_token(name: str) -> None:
    model = zoo.fresh("llama")
    inputs = zoo.prompt("llama", lengths=(9, 20))
    with foveate.compress(model, POLICIES[name]) as session:
        session.prefill(**inputs)
        share = session.held_share()
        layers: Any = session.cache.layers
        counted = torch.zeros(2, 20)
        heads = sum(layer.pairs.counts.shape[1] for layer in layers)
        for layer in layers:
            for row, by_head in enumerate(layer.pairs.columns.tolist()):
                for columns in by_head:
                    for column in set(columns) - {-1}:
                        counted[row, column] += 1 / heads
    assert share.shape == (2, 20)
    torch.testing.assert_close(share, counted)
    if name == "full":
        assert share.eq(1).all()
    else:
        assert share[1].sum() == pytest.approx(8, abs=1e-4)  # 40 % of 20
        assert share[0, :11].eq(0).all()  # padding


def test_answers_are_held_too() -> None:
    model = zoo.fresh("llama")
    inputs = zoo.prompt("llama", lengths=(20,))
    with foveate.compress(model, "random:budget=40%") as session:
        model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        share = session.held_share()
    assert share.shape == (1, 23)  # the last token was answered, but not read
    assert share[0, 20:].eq(1).all()
