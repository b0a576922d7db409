"""Keys, values and queries that are no numbers: one error that names the layer, whatever the
method, and none where they stand at padding.
"""

import re
from itertools import product

import pytest
import torch

import foveate
from foveate.cache.layer import Scores
from foveate.errors import InvalidInput, InvalidParameter
from foveate.methods.kivi import Kivi
from foveate.stages.budget import Uniform
from foveate.stages.score import Leverage
from foveate.stages.select import TopK

from .prompts import Spy, prompt
from .test_compress_tensors import NAMES, of

GIVEN = prompt([40, 31], h=2, g=2, d=8, e=8, depth=3)
WEIGHTS = [torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(1))] * 3
HIDDEN = [torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(2))] * 3
POLICIES = {
    **{name: of(name, "50%") for name in NAMES if name not in ("full", "kivi", "turboquant")},
    "kivi": foveate.kivi(),
    "turboquant": foveate.turboquant(),
    "leverage, exact": foveate.leverage(budget="50%", sketch=None),
    "quantised": foveate.random(budget="100%").but(store=Kivi()),
}
NUMBERS = [torch.nan, torch.inf, -torch.inf]
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def kept(policy, layers):
    more = {"output_weights": WEIGHTS, "hidden_states": HIDDEN}
    return foveate.compress_tensors(policy, layers, GIVEN.vision, GIVEN.mask, **more)


def layers(change):
    """Copies of the three, in the second of which one is changed."""
    copies = [tuple(t.clone() for t in layer) for layer in GIVEN.layers]
    change(*copies[1])
    return copies


@every_policy
def test_a_key_or_value_that_is_no_number_is_refused_with_its_layer(policy):
    for (name, place), number in product((("keys", 1), ("values", 2)), NUMBERS):
        says = f"{name} of layer 1 hold NaN or infinity at 1 of 40 tokens, which {policy} cannot"
        broken = layers(
            lambda *qkv, place=place, number=number: qkv[place][0, 1, 20, 3].fill_(number)
        )
        with pytest.raises(InvalidInput, match=re.escape(says)):
            kept(policy, broken)


@every_policy
def test_so_are_queries_where_they_are_read(policy):
    broken = layers(lambda q, k, v: q.fill_(torch.nan))
    if policy.running or (policy.score.queries(20) and policy.store.exact):
        says = r"the queries of layer 1 hold NaN .* at \d+ of|the scores of layer 1 contain NaN"
        with pytest.raises((InvalidInput, InvalidParameter), match=says):
            kept(policy, broken)
    else:
        kept(policy, broken)


@every_policy
def test_at_padding_they_do_not_matter(policy):
    expected = kept(policy, GIVEN.layers)
    for number in NUMBERS:
        padded = layers(lambda *qkv, number=number: [t[1, :, :9].fill_(number) for t in qkv])
        for ours, theirs in zip(kept(policy, padded), expected, strict=True):
            assert torch.equal(ours.mask, theirs.mask)
            assert torch.equal(ours.k[ours.mask], theirs.k[theirs.mask])
            assert torch.equal(ours.v[ours.mask], theirs.v[theirs.mask])


def test_numbers_as_large_as_their_type_has_are_numbers():
    largest = torch.finfo(torch.bfloat16).max
    huge = layers(lambda q, k, v: (k[0, 0].fill_(largest), k[0, 1].fill_(-largest)))
    kept(foveate.streaming_llm(budget=9), [tuple(t.bfloat16() for t in one) for one in huge])


@pytest.mark.parametrize("wrong", [torch.nan, 1.0])
def test_scores_that_are_no_numbers_are_refused_with_their_layer(wrong):
    class Breaks(Spy):
        def __call__(self, layer):
            if layer.ordinal == 1 and wrong == 1.0:
                raise IndexError("of another library")
            return Scores(torch.full(layer.pos.shape, wrong if layer.ordinal == 1 else 0.0))

    policy = foveate.Policy(score=Breaks(), budget=Uniform(amount=9), select=TopK())
    kind, says = (IndexError, "other") if wrong == 1.0 else (InvalidParameter, "layer 1 contain")
    with pytest.raises(kind, match=says):
        kept(policy, GIVEN.layers)
    with pytest.raises(InvalidInput, match="the keys of layer 1"):
        kept(policy, layers(lambda q, k, v: k.fill_(torch.inf)))


def test_sums_beyond_float32_are_named_by_their_layer():
    """Of finite keys, whose mean is none."""
    policy = foveate.Policy(score=Leverage(), budget=Uniform(amount=9), select=TopK())
    with pytest.raises(InvalidParameter, match="scores of layer 1 contain NaN"):
        kept(policy, layers(lambda q, k, v: k.fill_(3e38)))
