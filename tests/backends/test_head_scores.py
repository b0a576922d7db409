"""Files of head scores, as HeadKV's and SparseMM's authors publish them."""

from __future__ import annotations

import json

import pytest
import torch

import foveate
from foveate.errors import InvalidInput, UnsupportedModel
from tests import zoo

LAYERS, HEADS = 3, 4


def scores(**changes):
    """Two samples a head; head 1-3 has the highest."""
    return {f"{i}-{j}": [i + j, i + j + 1.0] for i in range(LAYERS) for j in range(HEADS)} | changes


def written(path, found, indent=None):
    path.write_text(found if isinstance(found, str) else json.dumps(found, indent=indent))
    return path


@pytest.mark.parametrize("method", ["headkv", "sparsemm"])
@pytest.mark.parametrize("indent", [None, 4])
def test_kv_heads_get_the_mean_of_their_query_heads(method, indent, tmp_path):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    path = written(tmp_path / "scores.json", scores(), indent)
    profile = foveate.import_head_scores(model, method, path)
    assert profile.by_layer == [[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]]
    assert (profile.method, profile.layers, profile.samples) == (method, LAYERS, 2)
    saved = profile.save(tmp_path / "profile.json")
    policy = foveate.METHODS[method](budget="50%", window=4, profile=str(saved))
    with foveate.compress(model, policy) as session:
        session.prefill(**inputs)
        kept = [layer.flatten().tolist() for layer in session.stats.kept]
    assert sum(map(sum, kept)) == 20 * LAYERS * 2
    if method == "sparsemm":
        assert kept[0][0] < kept[1][0] < kept[0][1] < kept[1][1]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("{", "holds no scores of heads"),
        ([1, 2], "holds no scores of heads"),
        ({}, "holds no scores of heads"),
        ({"0-0": 10**400}, "holds no scores of heads"),
        ("[" * 100_000, "nested too deep"),
        ('{"0-0": 1, "0-0": 2}', "the key '0-0' occurs twice"),
        ({"999999999-999999999": 1}, "lacks the heads 0-0, 0-1, .* 0-4, ... of 1000000000 layers"),
        ({"0.0": [1]}, "'0.0' is no layer and head"),
        (scores(**{"0-0": []}), "are no scores"),
        (scores(**{"0-0": [float("nan")]}), "NaN is no JSON number"),
        (scores(**{"0-0": [-1.0]}), "are no scores"),
        (scores(**{"0-0": ["a"]}), "could not convert"),
        (scores(**{"3-3": [1.0]}), "lacks the heads 3-0, 3-1, 3-2 of 4 layers with 4 heads"),
        ({"0-0": [1.0]}, "scores of 1 layers with 1 query heads"),
    ],
)
def test_files_that_do_not_fit_are_refused(found, says, tmp_path):
    path = written(tmp_path / "scores.json", found)
    with pytest.raises(InvalidInput, match=says.replace("(", r"\(")):
        foveate.import_head_scores(zoo.build("llama"), "headkv", path)


def test_other_methods_places_and_models_are_refused(tmp_path):
    path = written(tmp_path / "scores.json", scores())
    with pytest.raises(InvalidInput, match="'snapkv' has no format"):
        foveate.import_head_scores(zoo.build("llama"), "snapkv", path)
    with pytest.raises(InvalidInput, match="does not exist"):
        foveate.import_head_scores(zoo.build("llama"), "headkv", tmp_path / "none.json")
    with pytest.raises(UnsupportedModel):
        foveate.import_head_scores(torch.nn.Linear(2, 2), "headkv", path)
