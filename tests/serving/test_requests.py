"""Requests that choose: another policy, another budget, all of the prompt, or something wrong."""

import pytest
import torch

import foveate
from foveate.vllm.plans.gap import Room
from tests.serving.engine import check_same, engine, greedy, prompts, serve
from tests.serving.reference import NOISE, by_transformers

DEFAULT, OTHER, MERGING = "snapkv:budget=25%,window=8", "h2o:budget=40%", "lookm:budget=30%"
ASKED = (  # by each request, and what it then is under
    (None, DEFAULT),
    ({"foveate_policy": OTHER}, OTHER),
    ({"foveate_policy": "full"}, None),
    ({"foveate_budget": "50%"}, "snapkv:budget=50%,window=8"),
    ({"foveate_budget": 40}, "snapkv:budget=40,window=8"),
    ({"foveate_policy": MERGING, "foveate_budget": 0.6}, "lookm:budget=60%"),
    ({"foveate_budget": 3}, "snapkv:budget=3,window=8"),  # raised to the window
)
LENGTHS = (300, 135, 200, 97, 180, 160, 120)


def check(model, served, policies, contexts=None, block=32):
    """Every answer is that of the transformers backend under its policy."""
    for name, (answer, spec) in enumerate(zip(served.answers, policies, strict=True)):
        context = contexts[name] if contexts else None
        policy = foveate.policy(spec or "full")
        length = context or len(answer.prompt)
        if spec:
            room = Room.of(policy.amount, policy.select.protects)
            policy = policy.but(budget=room.kept(length, block))
        positions, tokens, logprobs = by_transformers(model, policy, answer, context)
        for place, expected in enumerate(positions):
            if (name, place) in served.kept:
                assert torch.equal(served.kept[name, place], expected), (name, place)
        assert tokens == answer.tokens, name
        torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=NOISE)


@pytest.fixture(scope="module")
def chosen(llama):
    """Seven requests in one batch, chunks of the prompts mixed with answers."""
    options = {"max_num_batched_tokens": 192, "num_gpu_blocks_override": 96}
    with engine(llama, DEFAULT, policies=[OTHER, MERGING], **options) as llm:
        return serve(llm, prompts(LENGTHS), 12, asked=[asked for asked, _ in ASKED])


def test_each_request_is_under_the_policy_that_it_asks_for(model, chosen):
    check(model, chosen, [spec for _, spec in ASKED])
    assert {name for name, _ in chosen.kept} == {0, 1, 3, 4, 5, 6}
    assert chosen.idle == 95


def test_requests_that_ask_for_everything_are_stock_vllm(llama):
    given = prompts((300, 64))
    with engine(llama) as llm:
        stock = serve(llm, given)
    with engine(llama, DEFAULT) as llm:
        whole = serve(llm, given, asked=[{"foveate_policy": "full"}] * 2)
    check_same(whole, stock)


WRONG = (
    ({"foveate_policy": "h2o:budget=10%"}, r"not served here. Choose one of snapkv.*full"),
    ({"foveate_polcy": "full"}, "Did you mean 'foveate_policy'"),
    ({"foveate_budget": "64MB"}, "bytes"),
    ({"foveate_budget": "150%"}, "more than the whole prompt"),
    ({"foveate_budget": 0}, "0"),
    ({"foveate_budget": True}, "(?i)true"),
    ({"foveate_budget": [1]}, "give one value"),
    ({"foveate_policy": "full", "foveate_budget": "10%"}, "keeps all"),
    ({"foveate_context": 0}, "foveate_context=0"),
    ({"foveate_context": 65}, "prompt's 64,"),
    ({"foveate_context": "half"}, "half"),
)


def test_wrong_requests_are_refused_and_the_others_go_on(llama, model):
    from vllm.exceptions import VLLMValidationError

    (given,) = prompts([64])
    with engine(llama, DEFAULT) as llm:
        for asked, said in WRONG:
            with pytest.raises(VLLMValidationError, match=said):
                llm.llm_engine.add_request("0", {"prompt_token_ids": given}, greedy(2, asked))
        served = serve(llm, prompts((300, 64)), 4)
    check(model, served, [DEFAULT] * 2)


def test_an_engine_without_the_worker_says_so(llama):
    from vllm.exceptions import VLLMValidationError

    given, asked = {"prompt_token_ids": [5, 6]}, greedy(2, {"foveate_policy": "full"})
    with engine(llama) as llm:
        add = llm.llm_engine.add_request
        with pytest.raises(VLLMValidationError, match="foveate serve"):
            add("0", given, asked)
