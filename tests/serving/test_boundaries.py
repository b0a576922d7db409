"""Requests that are compressed while they are read and answered: prompts longer than the pool, and
answers that stay bounded.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

import foveate
from foveate.backends.vllm.settings import settings_from
from foveate.backends.vllm.shares import Rooms
from foveate.backends.vllm.tiers import rooms_of
from foveate.stages.when import OverBudget
from tests.serving.engine import engine, prompts, serve
from tests.serving.following import answered, recorded
from tests.serving.tiny_text import VOCABULARY

BLOCK, NOISE = 32, 1e-3
BOTH = "when=over_budget(every=64,reading=true)"
KEYS, WINDOW, SUMS, RECENT = (
    f"knorm:budget=64,{BOTH}",
    "snapkv:budget=70,window=8,when=over_budget(every=40,reading=true)",  # every 64
    f"h2o:budget=64,{BOTH}",
    f"streaming_llm:budget=20%,{BOTH}",
)
READING = "keydiff:budget=64,when=over_budget(every=64,reading=true,answering=false)"
ANSWERING = "rkv:budget=64,every=32"
POLICIES = (KEYS, WINDOW, SUMS, RECENT, READING, ANSWERING)
LENGTHS = (400, 333, 380, 401, 300, 40)
SIZES = {"max_model_len": 512, "num_gpu_blocks_override": 9}  # of which 8 hold 256 tokens


@pytest.fixture(scope="module")
def tiny(tiny_folder):
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


def drawn(lengths):
    return [[3 + token % (VOCABULARY - 3) for token in prompt] for prompt in prompts(lengths)]


def same(model, spec, answer, kept):
    """Whether positions at every boundary, and log-probabilities, are those of transformers."""
    settings = settings_from({"foveate": {"policy": spec}})
    (room,), *_ = rooms_of(settings.policies, 2, 2, 512)
    share = Rooms((room,), BLOCK).own(len(answer.prompt))
    boundaries = share.boundaries(len(answer.prompt))
    every = share.every
    when = OverBudget(every=every.tokens, reading=every.reading, answering=every.answering)
    policy = foveate.policy(spec).but(budget=boundaries.kept, when=when)
    logprobs, made = answered(model, policy, answer, kept, boundaries)
    assert made.keys() == kept.keys()
    assert not any(made.values()), made
    torch.testing.assert_close(answer.logprobs, logprobs, rtol=0, atol=NOISE)
    return sorted({tokens for _, tokens in kept})


@pytest.fixture(scope="module")
def served(tiny):
    """Six requests of six policies, in a pool that holds none of their prompts."""
    with recorded() as kept, engine(tiny, KEYS, policies=POLICIES[1:], **SIZES) as llm:
        asked = [{"foveate_policy": spec} for spec in POLICIES]
        return serve(llm, drawn(LENGTHS), 100, asked=asked), kept


def test_prompts_longer_than_the_pool_are_served(model, served):
    answers, kept = served[0].answers, served[1]
    found = [
        same(model, spec, answer, kept[name])
        for name, (spec, answer) in enumerate(zip(POLICIES, answers, strict=True))
    ]
    assert found[0] == [144, 208, 272, 336, 400, 464]
    assert all(len(answer.tokens) == 100 for answer in answers)
    assert served[0].idle == 8
