"""What an evaluation notes of a prompt is what the measures say of its keys and attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import foveate
from foveate.hf import record
from foveate.hf.layer.support import foveate_layers
from foveate.loading.model import Loaded
from foveate_lab import analysis
from foveate_lab.eval.answering.analyses import POINTS, analysed, kept_places, plane
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.tasks import find_task
from tests import zoo

TASK = find_task("three_documents")


def test_a_prompt_is_analysed_layer_by_layer() -> None:
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40,))
    recording = record(model, **inputs)
    found = analysed(recording)
    assert found is not None
    layers = [(layer.q[:1], layer.k[:1], layer.v[:1]) for layer in recording.layers]
    vision = recording.layers[0].vision[:1, 0]
    expected = {
        "redundancy": [x[0].tolist() for x in analysis.redundancy(layers)],
        "gini": [float(x[0]) for x in analysis.gini(layers)],
        "ncar": [float(x[0]) for x in analysis.ncar(layers, vision)],
        "received": [[float(y[0]) for y in x] for x in analysis.received(layers, vision)],
        "divergence": [float(x.divergence[0]) for x in analysis.self_and_cross(layers, vision)],
    }
    for name, values in expected.items():
        assert np.allclose(np.array(found[name]), np.array(values), rtol=1e-3, atol=1e-6), name
    assert {len(curve) for curve in found["lorenz"]} == {POINTS}
    assert all(curve[-1] == pytest.approx(1, abs=1e-3) for curve in found["lorenz"])


def test_the_models_own_scale_counts() -> None:
    model = zoo.fresh("llama")
    for layer in model.model.layers:
        layer.self_attn.scaling *= 7
    recording = record(model, input_ids=torch.arange(5, 29)[None])
    found = analysed(recording)
    assert found is not None
    assert "ncar" not in found  # no image
    sharper = [(layer.q * 7, layer.k, layer.v) for layer in recording.layers]
    assert found["gini"] == pytest.approx([float(x) for x in analysis.gini(sharper)], rel=1e-3)


def test_the_plane_is_that_of_the_largest_variance() -> None:
    keys = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7)
    values, vectors = np.linalg.eigh(np.cov(keys.double().numpy().T))
    expected = (keys.double().numpy() - keys.double().numpy().mean(0)) @ vectors[:, [-1, -2]]
    found = plane(keys).numpy()
    assert np.allclose(np.abs(found), np.abs(expected), atol=1e-8)
    assert values[-1] > 2 * values[-3]


def test_only_the_first_prompts_are_analysed_and_kept_places_are_those_of_the_cache(
    loaded: Loaded,
) -> None:
    sample = next(TASK.samples(1, 0))
    spec = "snapkv:window=4,budget=30%"
    full, row = measured(loaded, TASK, sample, [spec], "query-aware", timed=True)
    assert full["spec"] == FULL
    assert full["analyses"]["ncar"]
    later = list(measured(loaded, TASK, sample, [spec], "query-aware"))
    assert not any("analyses" in one or "kept_places" in one for one in later)
    with foveate.compress(loaded.model, spec) as session:
        prompt = foveate.prompts.prompt.read(loaded, sample.text, list(sample.images))
        cache = session.prefill(**prompt.inputs)
        layers = foveate_layers(cache)
        held = layers[len(layers) // 2].pairs.columns[0, 0].tolist()
    assert row["kept_places"] == [x for x in held if x >= 0] == kept_places(cache)
