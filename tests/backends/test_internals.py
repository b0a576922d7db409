"""What Foveate relies on in transformers, said one by one: a release that changes any of it fails
here, by name. Nothing of Foveate's own is tested.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import CacheLayerMixin

from foveate.hf.model.internals import (
    CACHE,
    CACHE_NAMES,
    POSITIONS_RULE,
    AttentionInterface,
    DynamicLayer,
    cache_argument,
    rope_offsets,
    sdpa_attention_forward,
)
from tests import zoo
from tests.zoo.limits import MROPE

GREEDY = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
MARK = "_mark"


def passes(model, inputs, **how):
    """The keyword arguments of every forward pass of a ``generate``."""
    seen = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append({"args": args, **kwargs}), with_kwargs=True
    )
    try:
        output = model.generate(**inputs, **GREEDY, **how)
    finally:
        hook.remove()
    return seen, output


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_generate_hands_every_model_its_cache_under_the_name_that_is_read(family):
    model, inputs = zoo.build(family), zoo.prompt(family)
    assert cache_argument(model) == CACHE
    seen, output = passes(model, inputs)
    assert all(isinstance(each[CACHE], DynamicCache) for each in seen)
    assert all(other not in each for each in seen for other in CACHE_NAMES if other != CACHE)
    assert output[CACHE] is seen[-1][CACHE]


def test_forward_returns_its_cache_under_that_name_and_makes_one_if_there_is_none():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    cache = DynamicCache(config=model.config)
    assert model(**inputs, **{CACHE: cache})[CACHE] is cache
    assert isinstance(model(**inputs, use_cache=True)[CACHE], DynamicCache)


@pytest.mark.parametrize("family", MROPE)
def test_generate_places_tokens_by_a_method_that_a_model_with_m_rope_has_of_its_own(
    family, monkeypatch
):
    model, inputs = zoo.build(family), zoo.prompt(family)
    rule, made = getattr(model, POSITIONS_RULE), []

    def noted(ids, given):
        made.append(rule(ids, given))
        return made[-1]

    monkeypatch.setattr(model, POSITIONS_RULE, noted, raising=False)
    seen, _ = passes(model, inputs)
    assert made[0].shape == (4, *inputs["input_ids"].shape)
    assert torch.equal(seen[0]["position_ids"], made[0])
    assert torch.equal(seen[1]["position_ids"], made[0][..., -1:] + 1)


def test_generate_reads_the_prompt_in_its_first_pass_and_then_what_the_cache_has_not_seen():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(20,))
    assert [each["input_ids"].shape[1] for each in passes(model, inputs)[0]] == [20, 1, 1]
    chunks = [each["input_ids"].shape[1] for each in passes(model, inputs, prefill_chunk_size=8)[0]]
    assert chunks == [8, 8, 4, 1, 1]
    drafted = passes(model, inputs, prompt_lookup_num_tokens=2)[0]
    assert drafted[0]["input_ids"].shape[1] >= 20


def test_a_cache_has_a_plain_layer_for_full_attention_and_another_class_for_the_rest():
    config = zoo.build("gemma3").config
    kinds = config.get_text_config(decoder=True).layer_types
    layers = DynamicCache(config=config).layers
    assert {"full_attention", "sliding_attention"} == set(kinds)
    for kind, layer in zip(kinds, layers, strict=True):
        assert (type(layer) is DynamicLayer) == (kind == "full_attention")
    assert len(DynamicCache(config=zoo.build("llama").config).layers) > 1


class Noting(DynamicLayer):
    """Notes the calls that a cache makes of its layers."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if inspect.ismethod(found):
            super().__getattribute__("calls").append(name)
        return found


@pytest.mark.parametrize(
    ("of_cache", "of_layer", "arguments"),
    [
        ("get_seq_length", "get_seq_length", ()),
        ("get_mask_sizes", "get_mask_sizes", (1, 0)),
        ("crop", "crop", (-1,)),
        ("reset", "reset", ()),
        ("reorder_cache", "reorder_cache", (torch.tensor([0]),)),
        ("batch_repeat_interleave", "batch_repeat_interleave", (2,)),
        ("batch_select_indices", "batch_select_indices", (torch.tensor([0]),)),
    ],
)
def test_a_cache_asks_its_layers(of_cache, of_layer, arguments):
    cache, layer = DynamicCache(), Noting()
    pairs = torch.zeros(1, 2, 4, 8)
    cache.layers = [layer]
    cache.update(pairs, pairs, 0)
    assert "update" in layer.calls
    layer.calls.clear()
    getattr(cache, of_cache)(*arguments)
    assert of_layer in layer.calls


def test_a_layer_may_be_any_that_has_the_methods_of_the_mixin():
    asked = {"update", "get_seq_length", "get_mask_sizes", "reset", "reorder_cache"}
    assert asked <= set(dir(CacheLayerMixin))
    longest = {"get_max_length", "get_max_cache_shape"} & set(dir(CacheLayerMixin))
    assert longest, "neither name of a layer's greatest length is known"


@pytest.fixture
def noted(monkeypatch):
    """What attention functions were called with: (module, name, key, mask, keywords)."""
    calls, stock = [], AttentionInterface.get_interface

    def get_interface(self, name, default):
        function = stock(self, name, default)

        def attention(module, query, key, value, attention_mask, **kwargs):
            calls.append((module, name, key, attention_mask, kwargs))
            return function(module, query, key, value, attention_mask, **kwargs)

        return attention

    monkeypatch.setattr(AttentionInterface, "get_interface", get_interface)
    return calls


class Marking(DynamicLayer):
    """Returns marked keys."""

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        setattr(keys, MARK, self)
        return keys, values


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_comes_from_the_interface_and_gets_the_keys_that_update_returned(
    family, implementation, noted
):
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=(20, 30))
    config = model.config.get_text_config(decoder=True)
    config._attn_implementation_internal = implementation
    cache = DynamicCache(config=model.config)
    cache.layers = [Marking() for _ in cache.layers]
    model(**inputs, **{CACHE: cache})
    calls = [each for each in noted if getattr(each[2], MARK, None) is not None]
    assert [getattr(key, MARK) for _, _, key, _, _ in calls] == cache.layers
    for module, name, _, mask, kwargs in calls:
        assert name == implementation
        assert mask.dtype == (torch.bool if name == "sdpa" else torch.float32)
        assert mask.shape == (2, 1, 30, 30)
        assert kwargs["scaling"] == pytest.approx(module.head_dim**-0.5)


def test_an_interface_of_a_models_own_is_asked_as_well():
    assert not {"get_interface", "__getitem__"} - set(dir(AttentionInterface))
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward
    assert AttentionInterface().get_interface("eager", "the default") == "the default"


def test_stock_attention_takes_heads_in_front_and_returns_them_behind():
    q, kv = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    module = zoo.build("llama").model.layers[0].self_attn
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    out, _ = sdpa_attention_forward(module, q, kv, kv, mask, scaling=0.5, dropout=0.0)
    assert out.shape == (2, 5, 4, 8)
    weights = (0.5 * q @ kv.repeat_interleave(2, 1).mT).masked_fill(~mask, -torch.inf)
    wanted = weights.softmax(-1) @ kv.repeat_interleave(2, 1)
    assert torch.allclose(out.transpose(1, 2), wanted, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_qwen_notes_the_offset_of_its_latest_prompt_on_a_module(family):
    model = zoo.fresh(family)
    model(**zoo.prompt(family))
    (module,) = rope_offsets(model).values()
    first = module.rope_deltas.clone()
    model(**zoo.prompt(family, lengths=(60,), images=2))
    assert not torch.equal(module.rope_deltas, first)


def test_this_release_knows_its_own_name_of_the_cache():
    assert CACHE in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters


def test_gguf_files_are_read_with_a_bar_that_can_be_taken_away():
    reader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    assert callable(reader.tqdm)


def test_every_model_expands_latents_by_the_same_product():
    models = Path(transformers.__file__).parent / "models"
    method = re.compile(r"    def expand_kv\(.*?\n(?=    @|    def )", re.DOTALL)
    texts = [path.read_text("utf-8") for path in models.glob("*/modeling_*.py")]
    found = {code for text in texts for code in method.findall(text)}
    assert len(found) <= 1  # none where keys are cached expanded
    assert all("self.kv_b_proj(kv_nope).view(key_shape).transpose(1, 2)" in code for code in found)
