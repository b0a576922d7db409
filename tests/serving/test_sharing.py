"""What requests share: the beginning of their prompts, whole, and contexts that they declare."""

import pytest
import torch

from foveate.policies.amount import Amount
from foveate.vllm.plans.gap import Room
from tests.serving.engine import engine, prompts, serve
from tests.serving.test_requests import check

CONTEXT, BLOCK = 224, 32
SNAPKV, H2O, PYRAMID = (
    "snapkv:budget=25%,window=8",
    "h2o:budget=25%",
    "pyramidkv:budget=25%,window=8",
)


def questions(count=3, length=40):
    """Prompts that begin with the same context; one after the other, so that each finds it."""
    (context,) = prompts([CONTEXT])
    return [context + question for question in prompts([length + i for i in range(count)], seed=1)]


def one_by_one(llm, given, tokens=8, **options):
    return [serve(llm, [prompt], tokens, **options) for prompt in given]


@pytest.mark.parametrize(
    "policy",
    [
        SNAPKV,
        "knorm:budget=40%",
        pytest.param("mixkv:budget=25%,window=8", marks=pytest.mark.slow),
    ],
)
def test_the_beginning_is_shared_up_to_the_gap(llama, model, policy):
    """Prefix caching | works | the beginning of a prompt is shared as far as its gap"""
    given = questions()
    with engine(llama, policy, enable_prefix_caching=True) as llm:
        found = one_by_one(llm, given)
        again = serve(llm, given, 8)
    share, least = (policy.split("=")[1].split(",")[0], 8 if "window" in policy else 1)
    gaps = [Room.of(Amount.of(share), least).gap(len(prompt), BLOCK) * BLOCK for prompt in given]
    left = [0, min(CONTEXT, *gaps[:2]), min(CONTEXT, gaps[2], max(gaps[:2]))]
    assert [one.shared[0] for one in found] == left
    assert again.shared == gaps  # each finds its own, and the others' as far as they begin alike
    for one in found:
        check(model, one, [policy])
    check(model, again, [policy] * 3)
    assert again.idle == 63


def test_requests_at_once_share_with_each_other_and_with_whole_ones(llama, model):
    given, asked = questions(4), [None, {"foveate_policy": "full"}, {"foveate_budget": "50%"}, None]
    policies = [SNAPKV, None, "snapkv:budget=50%,window=8", SNAPKV]
    options = {"enable_prefix_caching": True, "max_num_batched_tokens": 96}
    with engine(llama, SNAPKV, **options) as llm:
        serve(llm, given[:1], 8)
        found = serve(llm, given, 8, asked=asked)
    check(model, found, policies)
    assert found.shared[1] >= 192  # all that the first has left
    assert all(shared > 0 for shared in found.shared)


def test_a_score_over_all_queries_reads_all_of_its_prompt(llama, model):
    with engine(llama, H2O, enable_prefix_caching=True) as llm:
        found = one_by_one(llm, questions())
        once = one_by_one(llm, questions()[:1] * 2, tokens=1)
    assert [one.shared for one in found] == [[0]] * 3
    for one in found:
        check(model, one, [H2O])
    check_not_compressed(once[1], found[0])


def check_not_compressed(once, served):
    """A request that ends with its prompt is answered alike, and all of its blocks are shared."""
    ((mine,), (theirs,)) = once.answers, served.answers
    assert not once.kept
    assert once.shared == [(len(mine.prompt) - 1) // BLOCK * BLOCK]
    assert mine.tokens == theirs.tokens[:1]
    torch.testing.assert_close(mine.logprobs, theirs.logprobs[:1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("policy", "tokens"), [(SNAPKV, 8), (H2O, 1), ("lookm:budget=25%", 8)])
def test_a_declared_context_is_shared_compressed(llama, model, policy, tokens):
    """Also by a request that ends in the step that completes it."""
    given, asked = questions(), [{"foveate_context": CONTEXT + 7}]  # ends with a whole block
    with engine(llama, policy, enable_prefix_caching=True) as llm:
        found = one_by_one(llm, given, tokens, asked=asked)
        mixed = serve(llm, given, 8, asked=[*asked, None, {**asked[0], "foveate_budget": "50%"}])
    assert [one.shared for one in found] == [[0], [CONTEXT], [CONTEXT]]
    for one in found:
        check(model, one, [policy], [CONTEXT])
    assert mixed.shared[0] == CONTEXT
    half = policy.replace("25%", "50%")
    check(model, mixed, [policy, policy, half], [CONTEXT, None, CONTEXT])
    assert mixed.idle == 63


def test_a_context_without_a_cache_is_read_again(llama, model):
    with engine(llama, SNAPKV, max_num_batched_tokens=64) as llm:
        found = serve(llm, questions(), 8, asked=[{"foveate_context": CONTEXT}] * 3)
    assert found.shared == [0] * 3
    check(model, found, [SNAPKV] * 3, [CONTEXT] * 3)


def test_a_preempted_context_comes_to_the_same_answer(llama, model):
    given = [c + q for c, q in zip(prompts([128] * 6), prompts([40] * 6, seed=1), strict=True)]
    options = {"enable_prefix_caching": True, "num_gpu_blocks_override": 30, "max_model_len": 512}
    with engine(llama, "snapkv:budget=60%,window=8", **options) as llm:
        found = serve(llm, given, 80, asked=[{"foveate_context": 128}] * 6)
    assert found.preemptions > 0
    check(model, found, ["snapkv:budget=60%,window=8"] * 6, [128] * 6)
    assert found.idle == 29
