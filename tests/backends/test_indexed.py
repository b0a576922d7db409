"""Layers with an indexer (sparse attention): exact, with one kept set where a top-k is shared."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput, UnsupportedCache, UnsupportedModel, UnsupportedPolicy
from foveate.hf.endless.rerotation import ways_to_turn
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE, IndexedLayer
from tests import zoo
from tests.census import IMAGE_TEXT, families
from tests.census.building import build
from tests.census.shrink import merged
from tests.census.verdicts import less, turns, whole
from tests.conformance.compare import check_generate
from tests.pairs import by_turns

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


MODES = {
    "padded": ((23, 31, 40), {}),
    "chunks": ((40,), {"prefill_chunk_size": 16}),
    "beams": ((23, 40), {"num_beams": 2}),
}


@by_turns(
    policy=[
        POLICY,
        "h2o:budget=20,when=over_budget",
        "kvzip:budget=50%",
        "lookm:budget=50%",
        "streaming_llm:budget=20",
    ],
    name=list(SHARED),
    mode=MODES,
)
def test_every_way_to_read_and_to_answer_is_exact(policy, name, mode):
    specimen, (lengths, how) = tiny(name), mode
    inputs = specimen.prompt(lengths)
    check_generate(specimen.model, foveate.policy(policy), inputs, **how)


def test_a_cache_is_cropped_saved_and_loaded(tmp_path):
    specimen = tiny("mistral_large4")
    model, inputs = specimen.model, specimen.prompt((31, 40))
    tokens = torch.full((2, 3), 33)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
    more = {"input_ids": tokens, "attention_mask": mask}
    with torch.no_grad(), foveate.compress(model, POLICY) as session:
        cache = session.prefill(**inputs)
        stored = [layer.pairs.padded() for layer in foveate_layers(cache)]
        path = session.save(tmp_path / "indexed.safetensors")
        first = model(**more, **{CACHE: cache}).logits
        cache.crop(-3)
        for branch in (cache, session.load(path)):
            pairs = [layer.pairs.padded() for layer in foveate_layers(branch)]
            assert all(all(map(torch.equal, *both)) for both in zip(pairs, stored, strict=True))
            assert torch.equal(model(**more, **{CACHE: branch}).logits, first)


def test_bytes_are_those_of_latents_rotary_and_index_keys():
    specimen = tiny("dots3_note")
    model, inputs = copy.deepcopy(specimen.model).to(torch.bfloat16), specimen.prompt((40,))
    stock = DynamicCache(config=model.config)
    with torch.no_grad():
        model(**inputs, **{CACHE: stock})
        with foveate.compress(model, "full") as session:
            cache = session.prefill(**inputs)
    config = model.config.get_text_config(decoder=True)
    widened = 2 * 40 * config.per_layer_config[0].qk_rope_head_dim  # as wide as index keys
    for layer, ours in zip(stock.layers, foveate_layers(cache), strict=False):
        keys, values, _ = ours.pairs.padded()
        index_keys = layer.indexer_keys[:, None]
        assert index_keys.dtype == torch.float32
        assert torch.equal(keys, layer.keys)
        assert torch.equal(values, torch.cat([layer.values, index_keys], -1))
        stored = layer.keys.nbytes + layer.values.nbytes + index_keys.nbytes
        assert ours.stats().bytes_before == stored + widened


def test_what_is_not_supported_is_refused_by_name():
    hy, dots = tiny("hy_v4_vl").model, tiny("dots3_note")
    for spec in ("pyramidkv:budget=20%", "snapkv:budget=4KB"):
        with pytest.raises(UnsupportedPolicy, match="they keep one set"):
            foveate.compress(hy, spec)
        foveate.compress(dots.model, spec)  # every layer has an indexer of its own
    with pytest.raises(UnsupportedModel, match="indexers choose among all tokens"):
        foveate.compress(dots.model, "fastv.prune(layer=1)+snapkv:budget=50%")
    with pytest.raises(UnsupportedModel, match="cannot be rotated"):
        ways_to_turn(dots.model, torch.ones(1, 4, dtype=torch.long))
    inputs = dots.prompt((40,))
    with foveate.compress(dots.model, POLICY) as session:
        again = {"input_ids": inputs["input_ids"][:, :10].repeat(1, 4)}
        with pytest.raises(UnsupportedCache, match="draft tokens"):
            dots.model.generate(**again, max_new_tokens=4, prompt_lookup_num_tokens=3)
        whole_mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
        with pytest.raises(InvalidInput, match="one entry for each token"):
            dots.model(**inputs | {"attention_mask": whole_mask})
        session.prefill(**inputs)
        with pytest.raises(UnsupportedCache, match="has an indexer"):
            session.fixed(4)


def chosen_by_hand(model, inputs, pads, how):
    """Votes of the queries that had a choice [b, n], by layer, from what indexers return."""
    votes, seen = {}, {}

    def count(indexer, _, chosen):  # [b, queries, top-k]
        layer, tokens = indexer.layer_idx, inputs["input_ids"].shape
        counts, start = votes.setdefault(layer, torch.zeros(tokens)), seen.get(layer, 0)
        seen[layer] = start + chosen.shape[1]
        for row, pad in enumerate(pads):
            for query in range(max(start, pad + indexer.index_topk), seen[layer]):
                counts[row, chosen[row, query - start].long()] += 1

    indexers = [part.indexer for part in model.modules() if getattr(part, "indexer", None)]
    hooks = [indexer.register_forward_hook(count) for indexer in indexers]
    model.generate(**inputs, max_new_tokens=1, **how)
    for hook in hooks:
        hook.remove()
    return votes


@pytest.mark.parametrize(
    ("name", "how"),
    [("dots3_note", {"prefill_chunk_size": 16}), ("hy_v4_vl", {})],
)
def test_the_votes_of_the_indexer_are_a_score(name, how):
    specimen, pads = tiny(name), (7, 0)
    model, inputs = specimen.model, specimen.prompt((33, 40))
    votes = chosen_by_hand(model, inputs, pads, how)
    with foveate.compress(model, "knorm:budget=25%,score=indexer") as session:
        model.generate(**inputs, max_new_tokens=1, **how)
    layers = {layer.model_index: layer for layer in foveate_layers(session.cache)}
    assert votes.keys() <= layers.keys()
    for index, wanted in votes.items():
        for row, pad in enumerate(pads):
            columns = layers[index].pairs.columns[row, 0]
            kept = torch.zeros(40, dtype=torch.bool)
            kept[columns[columns >= 0]] = True
            evicted = wanted[row, pad:][~kept[pad:]]
            assert wanted[row, kept].min() >= evicted.max() > evicted.min()


def test_an_indexer_that_had_no_choice_gives_no_votes():
    specimen = tiny("dots3_note")
    with (
        foveate.compress(specimen.model, "knorm:budget=3,score=indexer") as session,
        pytest.raises(InvalidInput, match="the model's indexer chose all of them"),
    ):
        session.prefill(**specimen.prompt((7,)))
    with pytest.raises(UnsupportedPolicy, match="LlamaForCausalLM has none"):
        foveate.compress(zoo.build("llama"), "snapkv:budget=25%,score=indexer")


def test_an_index_without_latents_of_its_own_is_refused():
    config = copy.deepcopy(tiny("mistral_large4").model.config)
    config.text_config.indexer_types = ["full"] * 4
    model = type(tiny("mistral_large4").model)(config)
    with pytest.raises(UnsupportedModel, match="an indexer of its own"):
        foveate.compress(model, POLICY)
