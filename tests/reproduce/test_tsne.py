"""t-SNE keeps apart what is apart, and neighborhoods have the perplexity that is asked for."""

from __future__ import annotations

import torch

from foveate_lab.reproduce.probes.tsne import affinities, tsne


def clusters():
    generator = torch.Generator().manual_seed(0)
    centers = 10 * torch.randn(3, 8, generator=generator)
    return torch.cat([center + torch.randn(20, 8, generator=generator) for center in centers])


def test_clusters_stay_apart():
    places = tsne(clusters(), perplexity=10.0).view(3, 20, 2)
    middles = places.mean(1)
    within = (places - middles[:, None]).norm(dim=-1).mean()
    between = torch.pdist(middles).min()
    assert between > 4 * within


def test_neighborhoods_have_the_perplexity():
    joint = affinities(clusters().double(), 7.0)
    assert torch.allclose(joint, joint.T)
    assert abs(float(joint.sum()) - 1) < 1e-9
    # even distances: all others are neighbors alike
    even = affinities(torch.eye(10, dtype=torch.float64), 9.0)
    assert torch.allclose(even + torch.eye(10) / 90, torch.full((10, 10), 1 / 90).double())


def test_the_same_seed_gives_the_same_places():
    assert torch.equal(tsne(clusters(), seed=3), tsne(clusters(), seed=3))
