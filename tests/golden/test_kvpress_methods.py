"""What is kept, and merged, is what kvpress keeps and merges of the same tensors."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.cache.layer import Scored, Scores
from foveate.methods.cam import MergeFollowing
from foveate.methods.chunkkv import BestChunks
from tests.stages.layers import layer_of

from .vectors import load

FILE = "kvpress_kept"
HALF, WINDOW = 30, 5
SPECS = {
    "ChunkKVPress_of_SnapKVPress": "chunkkv:length=5,pool=avg",
    "CriticalKVPress": "criticalkv",
    "AdaKVPress": "adakv:floor=0.3,guaranteed=true,kernel=5,pool=avg",
    "CriticalAdaKVPress": "criticalkv+adakv:floor=0.3,guaranteed=true",
    "FinchPress": "finch",
    "FinchPress_in_chunks": "finch:chunk=20",
}


def kept(policy, given):
    q, k, v, weight = (given[name] for name in ("q", "k", "v", "o_proj"))
    weights = [weight.T.reshape(q.shape[1], v.shape[3], -1)]
    return foveate.compress_tensors(policy, [(q, k, v)], output_weights=weights)[0].mask[0]


@pytest.mark.parametrize("press", SPECS)
def test_the_same_pairs_are_kept(press):
    given, args = load(FILE)
    assert (args["compression_ratio"], args["window_size"]) == (0.5, WINDOW)
    policy = foveate.policy(SPECS[press], budget=HALF, window=WINDOW)
    assert torch.equal(kept(policy, given), given[press])


def test_the_same_chunks_are_kept_of_a_score_without_a_window():
    given, args = load(FILE)
    expected = given["ChunkKVPress_of_KnormPress"]
    length = args["chunk_length"]["ChunkKVPress_of_KnormPress"]
    policy = foveate.knorm(budget=int(expected[0].sum())).but(select=BestChunks(length=length))
    assert torch.equal(kept(policy, given), expected)


def test_cam_merges_the_same_values(monkeypatch):
    given, args = load("kvpress_cam")
    v, received, mask = given["v"], given["attention"], given["kept"].expand(1, 3, -1)
    drawn = torch.ones_like(received, dtype=torch.float64)
    beside = given["chance"] + torch.where(given["drawn"], -1e-5, 1e-5)  # merges where below ours
    drawn[~mask] = beside.double().flatten()
    monkeypatch.setattr(MergeFollowing, "_drawn", lambda self, scored: drawn)
    layer = layer_of(v, v, v)
    scored = Scored(layer, Scores(received), received, layer.lengths)
    _, values = MergeFollowing(into=args["merge_budget"])(scored, mask)
    assert_close(values[mask].view_as(given["values"]), given["values"], atol=1e-6, rtol=1e-6)
    assert given["drawn"].any()
    assert not given["drawn"].all()
