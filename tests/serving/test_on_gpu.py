"""The same promises on a GPU, for each backend, with CUDA graphs and without. Needs vLLM's build
for CUDA, and runs nowhere else:

    python -m pytest tests/serving/test_on_gpu.py

It takes vLLM's defaults: the second model runner, asynchronous scheduling, and graphs.
"""

import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM

import foveate
from tests.serving.engine import check_alike, check_same, engine, prompts, serve
from tests.serving.reference import by_transformers
from tests.serving.test_llama import room

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="a CUDA device and vLLM's build for it are needed"
)

QUARTER, BLOCK = "snapkv:budget=25%,window=8", 16
LENGTHS = (300, 333, 64, 511)
# FLASH_ATTN has no float32. Log-probabilities may be off by this much of those of transformers.
TYPES = {"FLASH_ATTN": ("bfloat16", 0.3), "TRITON_ATTN": ("float32", 1e-2)}
KINDS = list(itertools.product(TYPES, (True, False)))


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{'eager' if kind[1] else 'graphs'}")
def options(request):
    backend, eager = request.param
    torch.backends.cuda.matmul.allow_tf32 = False
    return {
        "attention_backend": backend,
        "dtype": TYPES[backend][0],
        "enforce_eager": eager,
        "block_size": BLOCK,
        "num_gpu_blocks_override": 256,
        "gpu_memory_utilization": 0.5,
    }


def answers(llama, policy, given, options, tokens=24):
    from vllm.distributed import cleanup_dist_env_and_memory

    with engine(llama, policy, **options) as llm:
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        if policy is not None:
            worker.prompts.records = True
        served = serve(llm, given, tokens=tokens)
    cleanup_dist_env_and_memory()
    return served


def test_keeping_everything_is_stock_vllm(llama, options):
    given = prompts(LENGTHS)
    stock = answers(llama, None, given, options)
    served = answers(llama, "snapkv:budget=100%,window=8", given, options)
    check_same(served, stock)


@pytest.mark.parametrize(
    ("lengths", "chunk"), [(LENGTHS, 4096), (LENGTHS, 96), ((129,), 64), ((257, 257), 128)]
)
def test_a_quarter_equals_the_transformers_backend(llama, options, lengths, chunk):
    """Prompts whose last chunk is one token are those that a full CUDA graph would swallow.

    In bfloat16 tokens may tie, so what is asked for is that each token given is as likely as the
    likeliest, after the same tokens; where positions are counted, the type is float32.
    """
    dtype, noise = TYPES[options["attention_backend"]]
    served = answers(llama, QUARTER, prompts(lengths), options | {"max_num_batched_tokens": chunk})
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    policy, exact = foveate.policy(QUARTER), dtype == "float32"
    for name, answer in enumerate(served.answers):
        kept = room(policy.amount).kept(len(answer.prompt), BLOCK)
        positions, _, logprobs = by_transformers(model, policy.but(budget=kept), answer)
        for place, expected in enumerate(positions):
            found = served.kept[name, place].cpu()
            same = (found[:, :, None] == expected[:, None]).any(-1).float().mean()
            assert float(same) == 1.0 if exact else float(same) > 0.9, (name, place)
        given = logprobs[range(len(answer.tokens)), answer.tokens]
        assert bool((logprobs.max(-1).values - given <= noise).all())
        if exact:
            torch.testing.assert_close(logprobs, answer.logprobs.cpu(), rtol=0, atol=noise)


def test_blocks_of_the_gap_are_free_after_the_prefill(llama, options):
    given = prompts(LENGTHS)
    stock = answers(llama, None, given, options, tokens=4)
    served = answers(llama, QUARTER, given, options, tokens=4)
    freed = sum(room("25%").gap(n, BLOCK) for n in LENGTHS)
    assert served.free[2] - stock.free[2] == freed  # a step later, as one is always in flight
    assert served.idle == stock.idle == 255


def test_a_preempted_request_comes_to_the_same_answer(llama, options):
    policy, given = "snapkv:budget=60%,window=8", prompts([200] * 6)
    small = options | {"num_gpu_blocks_override": 60, "max_model_len": 512}
    served = answers(llama, policy, given, small, tokens=80)
    roomy = answers(llama, policy, given, options, tokens=80)
    assert served.preemptions > 0
    if options["dtype"] == "float32":
        check_alike([a.tokens for a in served.answers], roomy)
    assert served.idle == 59
