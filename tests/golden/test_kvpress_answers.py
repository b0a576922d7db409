"""The same model answers with the same logits under kvpress and here, in both of kvpress's ways."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList

import foveate
from tests.answers import Following
from tests.jitter import WIDER

from .kvpress_rows import ROWS, pending
from .vectors import load

QUESTION = 5
ASKED = [row for row in ROWS if row.press in load("kvpress_answers")[1] and not pending(row.spec)]


@pytest.fixture(scope="module")
def given():
    return load("kvpress_answers")[0]


@pytest.fixture(scope="module")
def model(given):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    weights = {k.removeprefix("model."): t for k, t in given.items() if k.startswith("model.")}
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights)
    model.generation_config.eos_token_id = None
    return model


def answered(model, prompt, theirs, **more):
    """Our logits of the tokens that theirs chose."""
    tokens = theirs.argmax(-1).tolist()
    told = model.generate(
        input_ids=prompt,
        max_new_tokens=len(tokens),
        logits_processor=LogitsProcessorList([Following(tokens, prompt.shape[1])]),
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **more,
    )
    return torch.cat(told.logits)


@pytest.mark.parametrize("row", ASKED, ids=str)
def test_with_press_and_compress_answer_alike(row, given, model):
    theirs = given[f"generate_{row.press}"]
    with foveate.compress(model, row.spec):
        ours = answered(model, given["prompt"], theirs)
    assert_close(ours, theirs, rtol=1e-4, atol=1e-4 + WIDER)


@pytest.mark.parametrize("row", ASKED, ids=str)
def test_the_pipeline_and_a_fork_answer_alike(row, given, model):
    theirs, prompt = given[f"pipeline_{row.press}"], given["prompt"]
    with foveate.compress(model, row.spec) as session:
        context = session.prefill(input_ids=prompt[:, :-QUESTION])
        ours = answered(model, prompt, theirs, cache=session.fork(context))
    assert_close(ours, theirs, rtol=1e-4, atol=1e-4 + WIDER)


def test_compression_changes_the_answers(given, model):
    for theirs in (given[f"generate_{row.press}"] for row in ASKED):
        assert (answered(model, given["prompt"], theirs) - theirs).abs().max() > 0.01
