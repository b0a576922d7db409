"""MixKV and DAVID over every method: the score of the one, the stages of the other."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.policies.gathering import GATHERINGS
from foveate.profiles.profile import Profile
from tests.profiles import saved_tensors, tensors_of

LAYERS, HEADS, TOKENS = 3, 2, 40


@pytest.fixture(scope="module")
def prompt():
    g = torch.Generator().manual_seed(0)
    layers = [
        tuple(torch.randn(1, h, TOKENS, 8, generator=g) for h in (4, HEADS, HEADS))
        for _ in range(LAYERS)
    ]
    vision = torch.zeros(1, TOKENS, dtype=torch.bool)
    vision[:, 3:28] = True
    weights = [torch.randn(4, 8, 16, generator=g) for _ in range(LAYERS)]
    hidden = [torch.randn(1, TOKENS, 5, generator=g) for _ in range(LAYERS)]
    return {
        "layers": layers,
        "vision": vision,
        "output_weights": weights,
        "hidden_states": hidden,
    }


def written(name, tmp_path):
    """The method with what it cannot do without."""
    parameters = foveate.METHODS[name].parameters
    if "profile" not in parameters or parameters["profile"].default is None:
        return name
    if name in GATHERINGS:
        path = saved_tensors(tmp_path, name, [tensors_of(name, HEADS, 8, 4)] * LAYERS)
        return f"{name}(profile='{path}')"
    profile = Profile(
        method=name,
        model="",
        layers=LAYERS,
        samples=1,
        budget="",
        by_layer=[[1.0, 2.0], [3.0, 4.0], [0.5, 0.1]],
    )
    return f"{name}(profile='{profile.save(tmp_path / 'heads.json')}')"


UNFIT = {
    "full",
    "kivi",
    "turboquant",
    "csp",
    "kvzip",
    "streammem",
}  # no scores, or none of tensors alone


@pytest.mark.parametrize("over", ["mixkv", "david"])
@pytest.mark.parametrize("name", sorted(set(foveate.METHODS) - UNFIT))
def test_the_sum_keeps_exactly_the_budget(prompt, name, over, tmp_path):
    terms = (foveate.METHODS[name], foveate.METHODS[over])
    small = {"window": 4} if any("window" in term.parameters for term in terms) else {}
    policy = foveate.policy(f"{written(name, tmp_path)}+{over}:budget=18", **small)
    kept = foveate.compress_tensors(policy, **prompt)
    assert sum(int(one.counts.sum()) for one in kept) == 18 * LAYERS * HEADS
