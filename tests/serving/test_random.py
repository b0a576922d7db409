"""Hundreds of requests at random: none gets a wrong token, and no block is lost or held twice."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import foveate
from foveate.vllm.plans.tiers import rooms_of
from tests.serving import reference
from tests.serving.engine import Traffic, engine, greedy
from tests.serving.reference import LEAD, counted

POLICY = foveate.policy("pyramidkv:budget=40%,window=8,beta=2")  # two layers, two block tables
REQUESTS, PROMPTS, ANSWER = 500, 20, 40
VOCABULARY, LONGEST, POOL = 64, 256, 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a Llama of two layers."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=LONGEST,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).float().eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def known(tiny):
    """Prompts of 1 to 200 tokens, short ones and long ones, and their answers by transformers."""
    draw = random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    rooms = [room for (room,) in rooms_of([POLICY], 2, 1, LONGEST)]
    found = []
    while len(found) < PROMPTS:
        length = draw.randint(41, 200) if len(found) % 2 else draw.randint(1, 40)
        prompt = [draw.randrange(3, VOCABULARY) for _ in range(length)]
        answer = reference.greedy(model, counted(POLICY, rooms, length)[1], prompt, ANSWER, LEAD)
        if answer is not None:
            found.append((prompt, answer))
    return found


def held(manager):
    """The blocks of all requests, once for each request that holds it."""
    return [
        block.block_id
        for group in manager.coordinator.single_type_managers
        for blocks in group.req_to_blocks.values()
        for block in blocks
        if not block.is_null
    ]


def test_five_hundred_requests(tiny, known):
    draw = random.Random(1)
    with engine(
        tiny,
        str(POLICY),
        max_model_len=LONGEST,
        num_gpu_blocks_override=POOL,
        max_num_seqs=12,
        max_num_batched_tokens=96,
        max_logprobs=0,
    ) as llm:
        core = llm.llm_engine.engine_core.engine_core
        manager = core.scheduler.kv_cache_manager
        free = manager.block_pool.get_num_free_blocks
        traffic = Traffic(llm, draw, REQUESTS, most=24, burst=3, leaving=0.05)
        asked, finished = {}, 0

        def ask(name):
            tokens = draw.choice([1, 2, 5, ANSWER])
            asked[name] = (*draw.choice(known), tokens)
            return {"prompt_token_ids": asked[name][0]}, greedy(tokens)

        for outputs in traffic.steps(ask):
            for output in outputs:
                _, right, tokens = asked[output.request_id]
                got = list(output.outputs[0].token_ids)
                assert got == right[: len(got)], output.request_id
                if output.finished:
                    assert len(got) == tokens
                    finished += 1
            blocks = held(manager)
            assert len(set(blocks)) == len(blocks)
            assert len(blocks) + free() == POOL - 1  # all but the null block
        worker = core.model_executor.driver_worker.worker
        assert len(worker.prompts._known) <= 12  # those that ended last are forgotten next
    assert finished + traffic.cancelled == REQUESTS
    assert free() == POOL - 1
    assert traffic.cancelled > 10
    assert len(traffic.preempted) > 10
