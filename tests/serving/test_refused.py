"""Models and options that vLLM serves and Foveate refuses, before anything is started."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM

from foveate.backends.vllm.support import DECODER
from foveate.errors import UnsupportedEngine
from tests.serving.engine import engine
from tests.serving.server import MODULE, free_port

POLICY = "knorm:budget=25%"
BLOOM = BloomForCausalLM, BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=2)
GEMMA2 = (
    Gemma2ForCausalLM,
    Gemma2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        head_dim=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        sliding_window=128,
    ),
)


@pytest.mark.parametrize(("made", "said"), [(BLOOM, "ALiBi"), (GEMMA2, "soft cap")])
def test_models_whose_attention_the_scores_do_not_see_are_refused(
    tmp_path, monkeypatch, made, said
):
    """By their configuration, before anything starts; and by their layers, once they are made."""
    kind, config = made
    torch.manual_seed(0)
    kind(config).float().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedEngine, match=f"^{tmp_path} has a.*{said}"):
        configuration(str(tmp_path), additional_config={"foveate": {"policy": POLICY}})
    monkeypatch.setattr("foveate.backends.vllm.activation.check_foreseen", lambda *_: None)
    with pytest.raises(UnsupportedEngine, match=said), engine(str(tmp_path), POLICY):
        pass


DRAFT = {"method": "draft_model", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"speculative_config": DRAFT},
            r"by 'draft_model' \(--speculative-config\): the layers of",
        ),
        ({"spec_method": "ngram_gpu", "spec_tokens": 2}, r"by 'ngram_gpu' \(--spec-method\)"),
        ({"kv_offloading_size": 1.0}, "--kv-offloading-size 1.0: offloading"),
        ({"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}, "--kv-transfer-config"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, "--worker-cls"),
        ({"enable_prompt_embeds": True}, "--enable-prompt-embeds"),
        ({"runner": "pooling"}, "--runner pooling"),
    ],
)
def test_options_are_refused_by_the_names_that_were_given(llama, monkeypatch, options, said):
    """The draft model is a real one, which vLLM takes; of connectors none is looked at."""
    if "speculative_config" in options:
        options = {"speculative_config": DRAFT | {"model": llama}}
    monkeypatch.setenv("FOVEATE_POLICY", POLICY)
    with pytest.raises(UnsupportedEngine, match=said):
        configuration(llama, **options)


def configuration(model, **options):
    """vLLM's of an engine, of which nothing is started."""
    from vllm.engine.arg_utils import EngineArgs

    plain = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True}
    return EngineArgs(model=model, **plain | options).create_engine_config()


@pytest.mark.parametrize(
    ("module", "environ", "words"),
    [
        ("foveate", {}, ("serve", "MODEL", "--policy", POLICY)),
        (MODULE, {"FOVEATE_POLICY": POLICY}, ("--model", "MODEL")),
    ],
)
def test_a_refusal_is_the_last_line_with_status_two(llama, module, environ, words):
    given = [llama if word == "MODEL" else word for word in words]
    command = [sys.executable, "-m", module, *given, "--kv-offloading-size", "2"]
    command += ["--port", str(free_port())]
    ended = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=300
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: Foveate's worker cannot be combined with --kv-offloading-size 2")
    assert ended.returncode == 2


def test_what_refusals_rely_on_is_there():
    from vllm.config import ModelConfig
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.core.sched.output import NewRequestData

    assert {"is_encoder_decoder", "is_mm_prefix_lm"} <= vars(ModelConfig).keys()
    assert "enable_prompt_embeds" in ModelConfig.__annotations__
    assert "req_id" in NewRequestData.__annotations__
    assert AttentionType.DECODER.value == DECODER
