"""Budgets read from a table of heads: exact, ragged, and of the model that they were made for."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.errors import InvalidInput, InvalidParameter, ProfileMismatch
from foveate.hf.layer.support import compressible_layers, model_name, text_config
from foveate.profiles.profile import Profile
from tests import zoo
from tests.conformance.compare import check_generate

FAMILIES = ("llama", "llava", "qwen2_5_vl", "internvl")


def table(path, model, method, /, **changes):
    """A profile of random scores for this model."""
    config = text_config(model)
    layers = len(compressible_layers(config))
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(layers, config.num_key_value_heads, generator=generator).pow(3)
    fields = {
        "method": method,
        "model": model_name(model),
        "layers": layers,
        "samples": 1,
        "budget": "",
        "by_layer": scores.tolist(),
    } | changes
    return str(Profile(**fields).save(path / f"{method}.json"))


@pytest.mark.parametrize("method", ["sparsemm", "headkv"])
@pytest.mark.parametrize("lengths", [(40,), (23, 31, 40)], ids=["alone", "left-padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_exact_and_equals_the_masked_full_cache(family, lengths, method, tmp_path):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    profile = table(tmp_path, model, method)
    policy = foveate.METHODS[method](budget="50%", window=4, profile=profile)
    event = check_generate(model, policy, inputs)
    kept = torch.stack([mask.sum(-1) for mask in event.kept.values()])  # [layers, b, h]
    for row, length in enumerate(lengths):
        assert int(kept[:, row].sum()) == length // 2 * kept[:, row].numel()
    assert len(set(kept[:, 0].flatten().tolist())) > 1


def test_profiles_of_other_models_depths_and_methods_are_refused(tmp_path):
    model = zoo.build("llama")
    inputs = zoo.prompt("llama", lengths=(40,))
    for changes, says in (
        ({"model": "another"}, "is of the model 'another'"),
        ({"layers": 1, "by_layer": [[1.0, 2.0]]}, "layers"),
    ):
        path = table(tmp_path, model, "sparsemm", **changes)
        policy = foveate.sparsemm(budget="50%", window=4, profile=path)
        with pytest.raises(ProfileMismatch, match=says), foveate.compress(model, policy):
            model.generate(**inputs, max_new_tokens=2)
    path = table(tmp_path, model, "headkv")
    with pytest.raises(ProfileMismatch, match="not of sparsemm"):
        foveate.sparsemm(budget="50%", profile=path)
    with pytest.raises(InvalidInput, match="foveate calibrate sparsemm"):
        foveate.sparsemm(budget="50%", profile=str(tmp_path / "none.json"))
    with pytest.raises(InvalidParameter, match="needs a profile"):
        foveate.sparsemm(budget="50%")
