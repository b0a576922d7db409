"""What stands at padding does not matter, whatever number it is."""

import pytest
import torch

import foveate

from .visual import Visual, visual

METHODS = {
    "mixkv": foveate.mixkv(budget=12, window=6),
    "mixkv, over all": foveate.mixkv(budget=12, window=6, pool="none", normalise_over="all"),
    "prefixkv": foveate.prefixkv(budget=12, merging="feature"),
    "csp": foveate.csp(budget=12),
    "david": foveate.david(budget=12, rule="always"),
    "lagkv": foveate.lagkv(budget=12, lag=4),
    "cur": foveate.cur(budget=12, rank=5),
    "compactor": foveate.compactor(budget=16, chunk=7),
    "leverage": foveate.leverage(budget=12, sketch=None),
    "chunkkv": foveate.chunkkv(budget=12, window=4, images="blocks"),
    "finch": foveate.finch(budget=12, window=4, chunk=9),
    "simlayerkv": foveate.simlayerkv(budget=12, sinks=2),
    "hermes": foveate.hermes(budget=12, window=6),
    "infinipotv": foveate.infinipotv(budget=12),
    "recent_frames": foveate.recent_frames(budget=12, frames=1),
    "lookm": foveate.lookm(budget=12),
    "lookm, weighted": foveate.lookm(budget=12, merging="weighted", similarity_filter=True),
}


@pytest.mark.parametrize("number", [0.0, 1e4, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("policy", METHODS.values(), ids=METHODS)
def test_any_number_at_padding_leaves_what_is_kept_as_it_is(policy, number):
    given = visual([30, 20], g=2, depth=2, seed=1)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    found = Visual(layers, given.images).keeps(policy)
    for ours, theirs in zip(found, given.keeps(policy), strict=True):
        assert torch.equal(ours.mask, theirs.mask)
        assert torch.equal(ours.k[ours.mask], theirs.k[theirs.mask])
        assert torch.equal(ours.v[ours.mask], theirs.v[theirs.mask])
