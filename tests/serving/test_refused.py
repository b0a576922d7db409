"""Models and options that vLLM serves and Foveate refuses, before anything is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from foveate.errors import UnsupportedEngine, UnsupportedPolicy
from foveate.vllm.startup.support import DECODER
from tests.serving.engine import engine
from tests.serving.server import MODULE, free_port

POLICY = "knorm:budget=25%"
BLOOM = BloomForCausalLM, BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=2)


def test_a_model_whose_attention_the_scores_do_not_see_is_refused(tmp_path, monkeypatch):
    """By its configuration, before anything starts; and by its layers, once they are made."""
    (kind, config), said = BLOOM, "ALiBi"
    torch.manual_seed(0)
    kind(config).float().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedEngine, match=f"^{tmp_path} has a.*{said}"):
        configuration(str(tmp_path), additional_config={"foveate": {"policy": POLICY}})
    monkeypatch.setattr("foveate.vllm.startup.activation.check_foreseen", lambda *_: None)
    with pytest.raises(UnsupportedEngine, match=said), engine(str(tmp_path), POLICY):
        pass


AGAIN = "knorm:budget=64,when=over_budget(every=64)"
ANSWERING = "rkv:budget=64,every=32"
DRAFTS = "of its methods ngram, draft_model, eagle, eagle3, mtp are served"
TOKENS = "a worker holds some of a request's tokens"


def drafts(method, **more):
    return {"speculative_config": {"method": method, "num_speculative_tokens": 2} | more}


def companions():
    """Options, a sentence's beginning, and the policy that they stand beside."""
    yield (
        drafts("medusa", model="MODEL"),
        rf"by 'medusa' \(--speculative-config\): {DRAFTS}",
        POLICY,
    )
    yield drafts("suffix"), rf"by 'suffix' \(--speculative-config\): {DRAFTS}", POLICY
    yield {"spec_method": "ngram_gpu", "spec_tokens": 2}, r"'ngram_gpu' \(--spec-method\)", POLICY
    for way in ("decode", "prefill"):
        size = f"{way}_context_parallel_size"
        said = rf"\(--{way}-context-parallel-size 2\): {TOKENS}"
        yield {size: 2, "tensor_parallel_size": 2}, said, POLICY
    yield {"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2", "pyramidkv:budget=25%"
    yield {"enable_dbo": True}, r"micro-batches \(--enable-dbo", POLICY
    for policy in (AGAIN, ANSWERING):
        yield {"disable_chunked_mm_input": True}, "--disable-chunked-mm-input", policy
    yield {"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, "--worker-cls", POLICY
    yield {"enable_prompt_embeds": True}, "--enable-prompt-embeds", POLICY
    yield {"runner": "pooling"}, "--runner pooling", POLICY
    yield {"tensor_parallel_size": 2}, "Use --tensor-parallel-size 1", "tova:budget=25%"
    yield {"pipeline_parallel_size": 2}, "may read earlier layers", "david:budget=25%"
    yield {"tensor_parallel_size": 4}, "Use --tensor-parallel-size 2 at most", POLICY


def test_every_companion_is_refused_by_its_name(llama, monkeypatch):
    """Before anything is started, and as it was given."""
    for options, said, policy in companions():
        given = options.get("speculative_config") or {}
        if given.get("model"):  # a real one, which vLLM takes
            options = {"speculative_config": given | {"model": llama}}
        monkeypatch.setenv("FOVEATE_POLICY", policy)
        with pytest.raises((UnsupportedEngine, UnsupportedPolicy), match=said):
            configuration(llama, **options)


def test_the_page_says_of_each_what_happens():
    text = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    table = text.split("<!-- companions -->")[1]
    for options, *_ in companions():
        for option in options.keys() - {"spec_tokens"}:
            assert f"--{option.replace('_', '-')}" in table


def test_what_goes_with_a_policy_is_not_refused(llama, monkeypatch):
    """Which the tests of ``test_options`` and ``test_processes`` then serve."""
    monkeypatch.setenv("FOVEATE_POLICY", POLICY)
    configuration(llama, **drafts("ngram"))
    configuration(llama, kv_offloading_size=1.0, kv_offloading_backend="native")
    configuration(llama, tensor_parallel_size=2)
    monkeypatch.setenv("FOVEATE_POLICY", AGAIN)
    configuration(llama, tensor_parallel_size=2)


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
    command = [sys.executable, "-m", module, *given, "--spec-method", "suffix"]
    command += ["--port", str(free_port())]
    ended = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=300
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: Foveate's worker cannot be combined with speculative decoding")
    assert ended.returncode == 2


def test_what_refusals_rely_on_is_there():
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.core.sched.output import NewRequestData

    assert "sliding_window" in CacheConfig.__annotations__
    assert "disable_chunked_mm_input" in SchedulerConfig.__annotations__
    assert {"is_encoder_decoder", "is_mm_prefix_lm"} <= vars(ModelConfig).keys()
    assert "enable_prompt_embeds" in ModelConfig.__annotations__
    assert "req_id" in NewRequestData.__annotations__
    assert AttentionType.DECODER.value == DECODER
