"""Half precision: what rounding the inputs changes, and that nothing else is rounded.

Numbers in bfloat16 score exactly as the same numbers in float32 do. Rounding them to bfloat16 in
the first place changes little of what is kept; `pytest -s` prints how much.
"""

import pytest
import torch

import foveate

from .visual import Visual, visual

BUDGET = 64
METHODS = {
    "mixkv": foveate.mixkv(budget=BUDGET, window=16),
    "mixkv, as the paper": foveate.mixkv(
        budget=BUDGET, window=16, pool="none", normalise_over="all", diversity_scale="importance"
    ),
    "mixkv, diversity": foveate.mixkv(budget=BUDGET, window=16, mix="diversity"),
    "prefixkv": foveate.prefixkv(budget=BUDGET),
    "prefixkv, feature": foveate.prefixkv(budget=BUDGET, merging="feature"),
    "csp": foveate.csp(budget=BUDGET),
    "csp, and": foveate.csp(budget=BUDGET, combine="and"),
    "csp, head_mean": foveate.csp(budget=BUDGET, head_mean=True),
    "david": foveate.david(budget=BUDGET),
    "david, always": foveate.david(budget=BUDGET, rule="always", rho=2.0),
    "lagkv": foveate.lagkv(budget=BUDGET, lag=32),
    "cur": foveate.cur(budget=BUDGET),
    "cur, random": foveate.cur(budget=BUDGET, rank=20),
    "compactor": foveate.compactor(budget=BUDGET, chunk=50),
    "leverage": foveate.leverage(budget=BUDGET, sketch=None),
    "hermes": foveate.hermes(budget=BUDGET),
    "lookm": foveate.lookm(budget=BUDGET),
    "lookm, averaged": foveate.lookm(budget=BUDGET, text_prior=False, merging="averaged"),
    "lookm, weighted": foveate.lookm(budget=BUDGET, merging="weighted", similarity_filter=True),
}


def drawn(dtype, again=None):
    """Three layers of 256 tokens with 4 heads of size 64, in a type, perhaps by way of another."""
    given = visual([256], h=4, d=64, depth=3, seed=0)
    layers = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    if again is not None:
        layers = [tuple(x.to(again) for x in layer) for layer in layers]
    return Visual(layers, given.images)


def overlap(ours, theirs):
    """The share of one's pairs that the other keeps as well, over all layers and heads."""
    both = sum(int((a.mask & b.mask).sum()) for a, b in zip(ours, theirs, strict=True))
    return both / sum(int(a.mask.sum()) for a in ours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", METHODS.values(), ids=METHODS)
def test_numbers_in_half_precision_score_and_merge_as_the_same_numbers_in_float32(policy, dtype):
    half = drawn(dtype).keeps(policy)
    full = drawn(dtype, torch.float32).keeps(policy)
    assert overlap(half, full) == 1.0
    for ours, theirs in zip(half, full, strict=True):
        assert torch.equal(ours.scores, theirs.scores)
        assert ours.k.dtype == ours.v.dtype == dtype
        assert torch.equal(ours.k[ours.mask], theirs.k[ours.mask].to(dtype))
        assert torch.equal(ours.v[ours.mask], theirs.v[ours.mask].to(dtype))


@pytest.mark.parametrize("name", METHODS)
def test_rounding_the_inputs_to_bfloat16_changes_less_than_a_tenth_of_what_is_kept(name):
    policy = METHODS[name]
    share = overlap(drawn(torch.float32).keeps(policy), drawn(torch.bfloat16).keeps(policy))
    print(f"\n{name}: {share:.2%} of {BUDGET} of 256 tokens are the same in bfloat16", end=" ")
    assert share >= 0.9
