"""Methods keep the same and answer alike whether the reference or the kernels do the arithmetic."""

import pytest

import foveate
from tests import zoo
from tests.interpreter import missing
from tests.jitter import other_side
from tests.ties import choices, same_kept

from .compare import GREEDY, TOLERANCE, difference
from .policies import EVERY

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

FEW = {**GREEDY, "max_new_tokens": 2}  # kernels are interpreted here, one program at a time


def run(model, policy, inputs):
    with foveate.compress(model, policy), choices() as kept:
        return model.generate(**inputs, **FEW), kept


SOME = (  # each kernel in a model; every one has tests of its own
    *("dense, quantised", "ragged, quantised"),
    *("mixkv", "csp", "david", "lookm", "h2o"),
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
    with foveate.ops.using("triton"), other_side():
        ours, kept = run(model, policy, inputs)
    rows = same_kept(kept, kept_by_reference)
    if rows.any():  # not the same arithmetic, but the same numbers
        assert 0 < difference(ours, expected, rows) <= TOLERANCE
