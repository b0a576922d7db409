"""Whatever type and device the process has as its defaults, the same is kept."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

import foveate
from foveate.stages.budget import Uniform
from foveate.stages.score import RandomScore
from foveate.stages.select import TopK
from tests.conformance.policies import COMPOSED, LAYER_SCOPE
from tests.defaults import DEFAULTS, Untold, default
from tests.profiles import saved, saved_tensors, tensors_of

from .prompts import prompt
from .test_compress_tensors import NAMES, WHOLE, of

GIVEN = prompt([40, 31], h=2, g=2, d=8, e=8, depth=3)
WEIGHTS = [torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(1))] * 3
HIDDEN = [torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(2))] * 3
MASK = GIVEN.mask
HEADS = [[0.1, 0.9], [0.4, 0.2], [0.7, 0.3]]
PROFILED = {
    "duo_attention": "duo_attention:budget=50%,sinks=2,recent=3",
    "headkv": "headkv:budget=50%,window=3",
    "sparsemm": "sparsemm:budget=50%,window=3",
    "mixkv": "mixkv:budget=50%,window=3",
    "prefixkv": "prefixkv:budget=50%",
    "q_filters": "q_filters:budget=50%",
    "fast_kvzip": "fast_kvzip:budget=50%",
}
OTHERS = {
    # what no method has by default
    **COMPOSED,
    **{name: policy for name, policy in LAYER_SCOPE.items() if "quantised" in name},
    "csp, a share": foveate.csp(budget="50%", recent=0.1),
    "cur, drawn": foveate.cur(budget="50%", rank=3),
    "leverage, exact": foveate.leverage(budget="50%", sketch=None),
    "leverage, wide": foveate.leverage(budget="50%", sketch=20),
    "lookm, weighted": foveate.lookm(budget="50%", merging="weighted", similarity_filter=True),
    "snapkv, every head": foveate.snapkv(budget="50%", window=3, group="max"),
    "aircache": foveate.aircache(budget="50%"),
}


def kept(policy, dtype=torch.float32):
    layers = [tuple(t.to(dtype) for t in layer) for layer in GIVEN.layers]
    weights = [weight.to(dtype) for weight in WEIGHTS]
    hidden = [states.to(dtype) for states in HIDDEN]
    more = {"output_weights": weights, "hidden_states": hidden}
    return foveate.compress_tensors(policy, layers, GIVEN.vision, MASK, **more)


def same(one, other):
    """Bit for bit, and of the same types."""
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.mask, b.mask)
        for x, y in ((a.k, b.k), (a.v, b.v), (a.scores, b.scores)):
            assert (x is None) == (y is None)
            assert x is None or (x.dtype == y.dtype and torch.equal(x, y))


def check(policy):
    """Under each of the defaults, and of a model in bfloat16 under that which its loader left."""
    expected = kept(policy)
    for name in DEFAULTS:
        watching = name == "float64"
        with default(name), Untold() if watching else nullcontext() as untold:
            found = kept(policy)
        same(found, expected)
        assert not watching or not untold.found
    expected = kept(policy, torch.bfloat16)
    with default("bfloat16"):
        same(kept(policy, torch.bfloat16), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_keeps_the_same_under_any_defaults(name):
    check(foveate.policy(name) if name in WHOLE else of(name, "50%"))


@pytest.mark.parametrize("name", OTHERS)
def test_a_policy_keeps_the_same_under_any_defaults(name):
    check(OTHERS[name])


@pytest.mark.parametrize("name", PROFILED)
def test_a_method_with_a_profile_keeps_the_same_under_any_defaults(name, tmp_path):
    if name == "q_filters":
        path = saved_tensors(tmp_path, name, [{"filters": torch.eye(8)[:2]}] * 3)
    elif name == "fast_kvzip":
        path = saved_tensors(tmp_path, name, [tensors_of(name, 2, 8, 4)] * 3)
    elif name == "prefixkv":
        path = saved(tmp_path, name, [0.3, 0.7, 0.5], budget="50%")
    else:
        path = saved(tmp_path, name, HEADS)
    check(foveate.policy(f"{PROFILED[name]},profile={path}"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [None, *DEFAULTS])
def test_a_seed_draws_the_same_tokens_everywhere(name, dtype):
    policy = foveate.Policy(score=RandomScore(seed=7), budget=Uniform(amount=5), select=TopK())
    with default(name) if name else nullcontext():
        found = kept(policy, dtype)
    for ordinal, layer in enumerate(found):
        generator = torch.Generator().manual_seed(7 * 100_003 + ordinal)
        drawn = torch.rand(40, 2, generator=generator).T
        for row, length in enumerate(GIVEN.lengths):
            for head in range(2):
                best = drawn[head, :length].topk(5).indices.sort().values
                assert layer.positions(row, head).tolist() == (best + 40 - length).tolist()


SPECS = ("random:budget=9", "snapkv:budget=9,window=3", "leverage:budget=9", "nacl:budget=9")
IMPORTING = """
import sys, torch
torch.set_default_dtype(torch.bfloat16), torch.set_default_device("meta")
import foveate, foveate_lab.analysis, foveate.methods
assert "torch._dynamo" not in sys.modules  # the compiler, which takes a second to import
assert torch.get_default_dtype() == torch.bfloat16 and str(torch.get_default_device()) == "meta"
torch.set_default_dtype(torch.float32), torch.set_default_device(None)
k = torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(0))
for spec in sys.argv[1:]:
    (kept,) = foveate.compress_tensors(foveate.policy(spec), [(k, k, k)])
    print(kept.mask.nonzero()[:, 2].tolist())
"""


def test_importing_under_other_defaults_leaves_nothing_behind():
    k = torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    expected = [
        foveate.compress_tensors(foveate.policy(spec), [(k, k, k)])[0].mask.nonzero()[:, 2].tolist()
        for spec in SPECS
    ]
    command = [sys.executable, "-c", IMPORTING, *SPECS]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str(places) for places in expected]
