"""A tiny Llama served by vLLM under a policy, against stock vLLM and against transformers."""

import pytest
import torch

import foveate
from foveate.policies.amount import Amount
from foveate.vllm.plans.gap import Room
from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.reference import NOISE, by_transformers

LENGTHS = (300, 333, 64, 511)


@pytest.fixture(scope="module")
def stock(llama):
    with engine(llama) as llm:
        return serve(llm, prompts(LENGTHS))


def test_keeping_everything_is_stock_vllm(llama, stock):
    with engine(llama, "snapkv:budget=100%,window=8") as llm:
        served = serve(llm, prompts(LENGTHS))
    check_same(served, stock)
    assert not served.kept


def room(budget):
    return Room.of(Amount.of(budget), least=8)


@pytest.fixture(scope="module")
def quarter(llama):
    with engine(llama, "snapkv:budget=25%,window=8") as llm:
        return serve(llm, prompts(LENGTHS))


def test_blocks_of_the_gap_are_free_after_the_prefill(stock, quarter):
    freed = [room("25%").gap(n, 32) for n in LENGTHS]
    assert sum(freed) == 27
    assert stock.free[0] == quarter.free[0]
    assert quarter.free[1] - stock.free[1] == sum(freed)
    assert quarter.idle == stock.idle == 63  # all but the null block


def check_against_transformers(model, policy, served, block=32):
    policy = foveate.policy(policy)
    for name, answer in enumerate(served.answers):
        kept = room(policy.amount).kept(len(answer.prompt), block)  # what whole blocks leave
        positions, tokens, logprobs = by_transformers(model, policy.but(budget=kept), answer)
        for place, expected in enumerate(positions):
            assert torch.equal(served.kept[name, place], expected), (name, place)
        assert tokens == answer.tokens
        torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=NOISE)


def test_a_quarter_equals_the_transformers_backend(model, quarter):
    check_against_transformers(model, "snapkv:budget=25%,window=8", quarter)


CHUNKED = {"max_num_batched_tokens": 96}  # chunks shorter than prompts, last ones than windows


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("snapkv:budget=25%,window=8", CHUNKED),
        ("h2o:budget=25%", CHUNKED),
        # with images in test_images.py
        pytest.param("mixkv:budget=25%,window=8", {}, marks=pytest.mark.slow),
        ("lookm:budget=25%", {}),
        ("knorm:budget=40", {}),
        ("david:budget=25%", CHUNKED),
        pytest.param("csp:budget=25%", {}, marks=pytest.mark.slow),
    ],
)
def test_policies_equal_the_transformers_backend(llama, model, policy, options):
    with engine(llama, policy, **options) as llm:
        served = serve(llm, prompts((300, 135, 97)), tokens=8)
    check_against_transformers(model, policy, served)


def test_a_small_pool_holds_more_requests_at_once(llama):
    """A pool of 35 blocks, and six prompts of 500 tokens."""
    given, small = prompts([500] * 6), {"num_gpu_blocks_override": 36}
    with engine(llama, **small) as llm:
        stock = serve(llm, given)
    with engine(llama, "knorm:budget=25%", **small) as llm:
        served = serve(llm, given)
    assert max(served.running) >= 2 * max(stock.running)
    assert len(served.free) < len(stock.free)


def test_a_preempted_request_comes_to_the_same_answer(llama, model):
    with engine(
        llama, "snapkv:budget=60%,window=8", num_gpu_blocks_override=30, max_model_len=512
    ) as llm:
        served = serve(llm, prompts([200] * 6), tokens=80)
    assert served.preemptions > 0
    assert served.idle == 29
    check_against_transformers(model, "snapkv:budget=60%,window=8", served)
