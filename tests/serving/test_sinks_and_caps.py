"""Models whose attention has sinks, or a soft cap: attention has them under a policy as well, and
scores leave them out, as on transformers.
"""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
)

from tests.serving.engine import check_same, engine, serve
from tests.serving.test_llama import check_against_transformers
from tests.serving.tiny_text import SIZES, drawn

LENGTHS = (300, 64, 171)
TURNS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
MODELS = {
    "sinks": (
        GptOssForCausalLM,
        GptOssConfig(
            **SIZES,
            **TURNS,
            num_local_experts=2,
            num_experts_per_tok=1,
            initializer_range=0.3,
        ),
    ),
    "cap": (
        Gemma2ForCausalLM,
        Gemma2Config(**SIZES, **TURNS, attn_logit_softcapping=2.0, initializer_range=0.3),
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    kind, config = MODELS[request.param]
    torch.manual_seed(0)
    model = kind(config).float().eval()
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "sinks"):
            layer.self_attn.sinks.data.normal_()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return str(folder)


def served(folder, policy):
    options = {"max_model_len": 512, "max_num_batched_tokens": 96, "num_gpu_blocks_override": 128}
    with engine(folder, policy, **options) as llm:
        return serve(llm, drawn(LENGTHS), tokens=12)


@pytest.mark.parametrize("policy", ["snapkv:budget=25%,window=8", "h2o:budget=40%"])
def test_answers_are_those_of_transformers(folder, policy):
    # transformers 5.19 leaves the soft cap out of its "sdpa"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    check_against_transformers(model, policy, served(folder, policy))


def test_keeping_everything_is_stock_vllm(folder):
    check_same(served(folder, "snapkv:budget=100%,window=8"), served(folder, None))
