"""An answer with a budget of its own, beside a prompt that is kept whole."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference, recorded
from tests.conformance.oracle import oracle

SPEC = "full:when=answer_budget(tokens=5,recent=2)"


def answered(model, inputs, ids):
    """Positions that each head of each row holds, of every layer, once the answer was told."""
    lengths = inputs["attention_mask"].sum(-1).tolist()
    pads = [inputs["input_ids"].shape[1] - length for length in lengths]
    with torch.no_grad(), foveate.compress(model, SPEC) as session:
        cache = session.prefill(**inputs)
        for part in ids.split(1, dim=1):
            model(input_ids=part, **{CACHE: cache})
        found = [layer.pairs.columns for layer in foveate_layers(cache)]
    return lengths, [
        [
            [head[head >= pad].sub(pad).tolist() for head in row]
            for row, pad in zip(one, pads, strict=True)
        ]
        for one in found
    ]


@pytest.mark.parametrize("lengths", [(23,), (23, 40)], ids=["alone", "left-padded"])
def test_a_prompt_that_is_kept_whole_stays_and_the_answer_is_bounded(lengths):
    model, ids = zoo.build("llama"), torch.randint(20, 80, (1, 12))
    inputs = zoo.prompt("llama", lengths=lengths)
    tokens, layers = answered(model, inputs, ids.expand(len(lengths), -1))
    for layer in layers:
        for length, row in zip(tokens, layer, strict=True):
            for head in row:
                assert head[:length] == list(range(length))
                assert len(head) == length + 5
                assert head[-2:] == [length + 10, length + 11]
    real = inputs["attention_mask"][0].bool()
    alone = {name: t[:1, real] for name, t in inputs.items()}
    assert answered(model, alone, ids)[1] == [layer[:1] for layer in layers]


@pytest.mark.parametrize("prompt", ["full:", "random:budget=60%,"])
@pytest.mark.parametrize("by", ["random", "age"])
def test_it_answers_as_with_what_has_left_masked(prompt, by):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(23, 40))
    policy = foveate.policy(f"{prompt}when=answer_budget(tokens=5,recent=2,by={by})")
    settings = {**GREEDY, "max_new_tokens": 12}
    with foveate.compress(model, policy), recorded(model, policy) as events:
        ours = model.generate(**inputs, **settings)
    assert not any(bool(kept[..., 40:].all()) for kept in events[-1].kept.values())
    with oracle(model, *events):
        theirs = model.generate(**inputs, **settings)
    assert difference(ours, theirs) <= TOLERANCE
