"""Methods keep the same and answer alike whether the reference or the kernels do the arithmetic."""

import pytest
import torch

import foveate
from tests import zoo
from tests.interpreter import missing

from .compare import GREEDY, difference, recorded
from .policies import EVERY

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

FEW = {**GREEDY, "max_new_tokens": 3}  # kernels are interpreted here, one program at a time


def run(model, policy, inputs):
    with foveate.compress(model, policy), recorded(model, policy) as events:
        return model.generate(**inputs, **FEW), events[0].kept


SOME = (  # each kernel in a model; every one has tests of its own
    *("dense", "ragged", "dense, quantised", "ragged, quantised"),
    *("mixkv", "csp", "david", "lookm", "adakv", "h2o"),
)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(policy, id=name, marks=() if name in SOME else pytest.mark.slow)
        for name, policy in EVERY.items()
    ],
)
def test_kept_sets_are_the_same_and_logits_agree(policy):
    model, inputs = zoo.build("qwen2_5_vl"), zoo.prompt("qwen2_5_vl", lengths=(31, 40))
    expected, kept_by_reference = run(model, policy, inputs)
    with foveate.ops.using("triton"):
        ours, kept = run(model, policy, inputs)
    assert all(torch.equal(kept[layer], kept_by_reference[layer]) for layer in kept)
    assert 0 < difference(ours, expected) <= 2e-5  # not the same arithmetic, but the same numbers
