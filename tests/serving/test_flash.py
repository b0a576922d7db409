"""A tiny Llama served through vLLM's FLASH_ATTN and Foveate's, on a CPU: its two CUDA kernels are
written out in PyTorch, everything else is what runs on a GPU. No GPU has seen it.
"""

from unittest import mock

import pytest

from foveate.vllm.vllm_api import CUDAGraphMode, flash_attention
from foveate.vllm.worker.gpu import FoveateFlash
from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.stand_ins import attending_with
from tests.serving.test_llama import check_against_transformers

LENGTHS = (150, 97, 40)
SIZES = {"block_size": 16, "max_model_len": 256}


def test_keeping_everything_is_stock_flash_attn(llama):
    answers = []
    for backend, policy in (
        (flash_attention().backend, None),
        (FoveateFlash, "snapkv:budget=100%,window=8"),
    ):
        with attending_with(backend), engine(llama, policy, **SIZES) as llm:
            answers.append(serve(llm, prompts(LENGTHS), tokens=8))
    check_same(answers[1], answers[0])


@pytest.mark.parametrize(
    ("policy", "layout", "options"),
    [
        ("snapkv:budget=25%,window=8", "LBNHC", {}),
        ("h2o:budget=25%", "BLHNC", {"max_num_batched_tokens": 96}),
        ("mixkv:budget=25%,window=8", "LHBNC", {}),
    ],
)
def test_policies_equal_the_transformers_backend(
    llama, model, monkeypatch, policy, layout, options
):
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", layout)
    with attending_with(FoveateFlash), engine(llama, policy, **SIZES, **options) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=8)
        resolved = llm.llm_engine.vllm_config.cache_config.kv_cache_layout
    assert resolved == layout
    check_against_transformers(model, policy, served, block=16)


def test_passes_that_read_a_prompt_are_kept_out_of_full_graphs(llama):
    """A prompt of 33 tokens in chunks of 32: its second pass looks like one of an answer."""
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    dispatch, refused = CudagraphDispatcher.dispatch, []

    def recorded(self, *args, **asked):
        refused.append((asked["num_tokens"], asked["uniform_decode"], asked["invalid_modes"]))
        return dispatch(self, *args, **asked)

    options = SIZES | {"max_num_batched_tokens": 32}
    with (
        mock.patch.object(CudagraphDispatcher, "dispatch", recorded),
        attending_with(FoveateFlash),
        engine(llama, "knorm:budget=8", **options) as llm,
    ):
        refused.clear()
        serve(llm, prompts((33,)), tokens=3)
    full = {CUDAGraphMode.FULL}
    assert refused == [(32, False, full), (1, True, full), (1, True, None), (1, True, None)]


def test_a_preempted_request_comes_to_the_same_answer(llama, model):
    policy = "snapkv:budget=60%,window=8"
    small = SIZES | {"num_gpu_blocks_override": 24}
    with attending_with(FoveateFlash), engine(llama, policy, **small) as llm:
        served = serve(llm, prompts([100] * 4), tokens=40)
    assert served.preemptions > 0
    assert served.idle == 23
    check_against_transformers(model, policy, served, block=16)
