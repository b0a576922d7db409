"""Layers with an indexer (sparse attention): exact, with one kept set where a top-k is shared."""

from dataclasses import replace

import pytest
import torch

import foveate
from foveate.errors import UnsupportedCache, UnsupportedModel, UnsupportedPolicy
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE, IndexedLayer
from tests.census import IMAGE_TEXT, families
from tests.census.building import build
from tests.census.shrink import merged
from tests.census.verdicts import less, turns, whole

FOUR = {
    "num_hidden_layers": 4,
    "layer_types": ["indexed_attention"] * 4,
    "mlp_layer_types": ["dense", "sparse"] * 2,
    "index_topk": 8,
}
SHARED = {
    "hy_v4_vl": FOUR | {"indexer_types": ["full", "shared"] * 2},
    "mistral_large4": FOUR
    | {
        "indexer_types": ["full", "full", "shared", "shared"],
        "kv_source_layers": [0, 1, 2, 0],
        "no_rope_layers": [1, 1, 0, 1],
    },
    "dots3_note": {"index_topk": 8},
}
GROUPS = {"hy_v4_vl": [[0, 1], [2, 3]], "mistral_large4": [[0, 1, 2]], "dots3_note": [[0], [1]]}
POLICY = "snapkv:budget=50%,window=4"

pytestmark = pytest.mark.skipif(
    IndexedLayer is None or not set(SHARED) <= set(IMAGE_TEXT),
    reason="this release has no image-text types with an indexer",
)
_built = {}


def tiny(name):
    """A specimen whose top-k is smaller than what is kept, and shared where the type can."""
    if name not in _built:
        entry = families.ENTRIES[name]
        mine = replace(entry, overrides=merged(entry.overrides, {"text_config": SHARED[name]}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(families.ENTRIES, name, mine)
            _built[name] = build(name)
    return _built[name]


@pytest.mark.parametrize("name", SHARED)
def test_a_type_is_exact_and_a_group_keeps_one_set(name):
    specimen = tiny(name)
    inputs = specimen.prompt((44, 60), images=1)
    whole(specimen, inputs, name)
    session = less(specimen, inputs, name, POLICY)
    columns = [layer.pairs.columns for layer in foveate_layers(session.cache)]
    for group in GROUPS[name]:
        assert all(torch.equal(columns[layer], columns[group[0]]) for layer in group)
    firsts = [columns[group[0]] for group in GROUPS[name]]
    assert len(firsts) < 2 or not torch.equal(*firsts)
    assert turns(specimen)
