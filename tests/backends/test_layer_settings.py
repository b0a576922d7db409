"""Models whose layers differ in numbers or sizes of heads, as in their default configurations."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import CONFIG_MAPPING

import foveate
from foveate.cache.pairs import Form
from foveate.errors import UnsupportedModel
from foveate.hf.attach.model_policy import forms_of
from foveate.hf.layer.support import compressible_layers, most_kv_heads, text_config
from foveate.hf.measuring.heads import import_head_scores
from foveate.hf.model.layer_settings import layer_settings, shared_setting
from foveate.memory import Request
from foveate.memory.model import bare
from foveate.memory.trace import trace
from tests.census import build

pytestmark = pytest.mark.filterwarnings("ignore")  # of stock models
DIFFER = {"gemma4": "head_dim", "step3p7": "num_attention_heads", "dots3_note": "kv_lora_rank"}


@pytest.fixture(scope="module", params=DIFFER)
def model(request):
    if request.param not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {request.param}")
    return build(request.param).model


def test_settings_that_differ_are_read_layer_by_layer(model):
    config = text_config(model)
    name = DIFFER[model.config.model_type]
    assert len(set(layer_settings(config, name))) == 2
    with pytest.raises(UnsupportedModel, match=f"differ in {name}"):
        shared_setting(config, name, range(config.num_hidden_layers))


def test_forms_by_configuration_are_those_of_the_stored_pairs(model):
    try:
        with foveate.compress(model, "full") as session:
            model(input_ids=torch.arange(20, 40)[None], use_cache=True)
    except UnsupportedModel:
        return  # refused by name, which the census holds
    layers = [session.cache.layers[i] for i in compressible_layers(text_config(model))]
    queries = layer_settings(text_config(model), "num_attention_heads")
    stored = [Form.of(queries[x.model_index], x.keys, x.values) for x in layers]
    assert list(forms_of(model)) == stored
    assert most_kv_heads(text_config(model)) >= max(form.heads for form in stored)


def test_kv_heads_of_some_layers_only_count():
    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("this release of transformers has no gemma4")
    kind = CONFIG_MAPPING["gemma4_text"]
    config = kind(num_key_value_heads=2, num_global_key_value_heads=4, attention_k_eq_v=True)
    assert most_kv_heads(config) == 4


def test_scores_of_heads_and_memory_count_the_compressed_layers_heads(tmp_path):
    if "step3p7" not in CONFIG_MAPPING:
        pytest.skip("this release of transformers has no step3p7")
    model = build("step3p7").model
    scores = {f"{layer}-{head}": [1.0] for layer in range(4) for head in range(4)}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    profile = import_head_scores(model, "headkv", tmp_path / "scores.json")
    assert [len(heads) for heads in profile.by_layer] == [2, 2]
    model.config.text_config.mlp_layer_types = ["dense"] * 4  # experts do not run without numbers
    model.config.save_pretrained(tmp_path)
    traced = trace(bare(str(tmp_path), "float32"), Request(text=40))
    assert [form.query_heads for form in traced.forms.values()] == [4, 4]
