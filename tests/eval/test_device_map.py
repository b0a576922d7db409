"""A model whose layers stand on several devices answers as on one: here half of them on disk."""

from __future__ import annotations

from inspect import signature

import pytest
import torch

from foveate.cli.lens import lens
from foveate.cli.run.run import run
from foveate.defaults import SEES
from foveate.errors import InvalidParameter
from foveate.hf import compress
from foveate.loading.model import load
from foveate.prompts.prompt import read
from foveate_lab.cli.bench import benchmark
from foveate_lab.eval.executors import find_executor

PARTS = ("vision_tower", "multi_modal_projector", "language_model.embed_tokens")
AFTER = ("language_model.norm", "language_model.rotary_emb")


@pytest.fixture(scope="module")
def spread(directory, loaded):
    layers = range(loaded.model.config.get_text_config().num_hidden_layers)
    places = dict.fromkeys((f"model.{part}" for part in (*PARTS, *AFTER)), "cpu")
    places |= {f"model.language_model.layers.{i}": "disk" if i % 2 else "cpu" for i in layers}
    return load(directory, device_map={**places, "lm_head": "cpu"})


@pytest.mark.parametrize(
    "spec", ["snapkv:budget=20,window=4", "prefixkv:budget=30%", "adakv:budget=20,window=4"]
)
def test_answers_are_those_of_one_device(loaded, spread, spec):
    said = []
    for one in (loaded, spread):
        prompt = read(one, "What is it? " * 30, [])
        with compress(one.model, spec) as session:
            found = one.model.generate(**prompt.inputs, max_new_tokens=6, do_sample=False)
            said.append((found.tolist(), session.stats.kept_tokens))
    assert said[0] == said[1]
    assert "disk" in spread.model.hf_device_map.values()


def test_what_stands_on_one_device_takes_no_map():
    with pytest.raises(InvalidParameter, match="device_map='auto'"):
        load(SEES, device_map="auto")
    with pytest.raises(InvalidParameter, match="a worker of Ray has one device"):
        find_executor("ray", SEES, "query-aware", None, device_map="auto")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_weights_have_the_dtype_that_is_asked_for(directory, name):
    assert load(directory, dtype=name).model.dtype == getattr(torch, name)


@pytest.mark.parametrize("command", [run, lens, benchmark])
def test_commands_that_load_a_model_say_where_and_in_what_dtype(command):
    assert {"device_map", "dtype"} <= set(signature(command).parameters)
