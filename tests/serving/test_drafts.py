"""Speculative decoding with layers of its own: the drafter's cache stays whole, the model's is
compressed, and answers are those without drafts.
"""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.answers import certain
from tests.serving.engine import Traffic, engine, greedy, prompts, serve
from tests.serving.following import recorded, same
from tests.serving.reference import LEAD
from tests.serving.test_requests import check

POLICY = "knorm:budget=60%"
AGAIN = "snapkv:budget=96,window=8,when=over_budget(every=64)"
LENGTHS = (300, 97, 180)


@pytest.fixture(scope="module")
def repeating(llama, tmp_path_factory):
    """A Llama that repeats itself, so that drafts are accepted and rejected by turns."""
    config = AutoConfig.from_pretrained(llama)
    config.tie_word_embeddings, config.initializer_range = True, 0.05
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("repeating")
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def draft_model(repeating, tmp_path_factory):
    """The first two of the model's four layers."""
    model = AutoModelForCausalLM.from_pretrained(repeating)
    model.config.num_hidden_layers = 2
    model.model.layers = model.model.layers[:2]
    folder = tmp_path_factory.mktemp("draft")
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def eagle(repeating, tmp_path_factory):
    """An EAGLE head: the model's first layer behind a projection that passes on the embedding."""
    folder = tmp_path_factory.mktemp("eagle")
    weights = load_file(f"{repeating}/model.safetensors")
    mine = {
        name.removeprefix("model."): tensor
        for name, tensor in weights.items()
        if "layers.0." in name and "input_layernorm" not in name
    }
    mine["fc.weight"] = torch.cat([torch.eye(128), torch.zeros(128, 128)], 1)
    save_file(mine, folder / "model.safetensors")
    config = AutoConfig.from_pretrained(repeating).to_dict() | {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def drafting(method, model=None, tokens=3):
    """The option of vLLM's that has this method draft."""
    own = {"model": model} if model else {"prompt_lookup_max": 2}
    return {"speculative_config": {"method": method, "num_speculative_tokens": tokens} | own}


def counted(llm):
    """Drafted tokens that were accepted, and all of them."""
    values = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    return tuple(values[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("accepted", "draft"))


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_drafts_of_a_model_change_no_answer(repeating, request, method):
    """Speculative decoding with a draft model, EAGLE or MTP | works | the drafter's cache stays
    whole; MTP and EAGLE-3 were not run
    """
    drafter = request.getfixturevalue(method)
    model = AutoModelForCausalLM.from_pretrained(repeating).eval()
    options = {"max_num_batched_tokens": 128, "enable_prefix_caching": True}
    options |= {"num_gpu_blocks_override": 240, "disable_log_stats": False}
    with engine(repeating, POLICY, **options | drafting(method, drafter)) as llm:
        idle = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        before = idle.get_num_free_blocks()
        cold, warm = (serve(llm, prompts(LENGTHS), 40) for _ in range(2))
        accepted, offered = counted(llm)
        assert idle.get_num_free_blocks() == before
    for found in (cold, warm):
        check(model, found, [POLICY] * len(LENGTHS))
        assert {place for _, place in found.kept} == {0, 1, 2, 3}  # of the model alone
    assert any(warm.shared)
    assert 20 < accepted < offered


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle"])
def test_a_rejected_draft_crosses_no_boundary(repeating, request, method):
    """Compressed again and again, while drafts are accepted and rejected beside each boundary."""
    model = AutoModelForCausalLM.from_pretrained(repeating).eval()
    given = [prompt[:40] * 5 for prompt in prompts([60, 50])]
    drafts = drafting(method, None if method == "ngram" else request.getfixturevalue(method))
    options = {"num_gpu_blocks_override": 240, "disable_log_stats": False}
    with recorded() as kept, engine(repeating, AGAIN, **options, **drafts) as llm:
        answers = serve(llm, given, 150).answers
        accepted, offered = counted(llm)
    for name, answer in enumerate(answers):
        assert len(same(model, AGAIN, answer, kept[name])) >= 3
    assert 20 < accepted < offered


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize(
    ("requests", "method", "blocks"),
    [
        (24, "eagle", 110),
        (24, "draft_model", 66),
        pytest.param(300, "eagle", 110, marks=pytest.mark.slow),
    ],
)
def test_requests_at_random_are_answered_as_without_drafts(
    repeating, request, requests, method, blocks
):
    """Once, again and again, or whole, in a pool that holds few of them; some go away."""
    draw, given = random.Random(requests), prompts((200, 120, 70), seed=4)
    drafts = drafting(method, request.getfixturevalue(method))
    asked = [{}, {"foveate_policy": AGAIN}, {"foveate_policy": "full"}, {"foveate_context": 64}]
    choices = [(prompt, extra) for prompt in given for extra in asked]
    plain = {"policies": [AGAIN], "max_num_batched_tokens": 96, "max_model_len": 512}
    with engine(repeating, POLICY, num_gpu_blocks_override=200, **plain) as llm:
        right = serve(llm, [one for one, _ in choices], 60, asked=[extra for _, extra in choices])
    small = plain | {"num_gpu_blocks_override": blocks, "enable_prefix_caching": True}
    with engine(repeating, POLICY, **small | drafts) as llm:
        pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        idle, which = pool.get_num_free_blocks(), {}

        def ask(name):
            which[name] = draw.randrange(len(choices))
            prompt, extra = choices[which[name]]
            return {"prompt_token_ids": prompt}, greedy(draw.choice([1, 20, 60]), extra)

        traffic = Traffic(llm, draw, requests, most=8, burst=3, leaving=0.02)
        for outputs in traffic.steps(ask):
            for output in outputs:
                answer, got = right.answers[which[output.request_id]], output.outputs[0].token_ids
                sure = min(certain(answer.logprobs, LEAD), len(got))
                assert list(got[:sure]) == answer.tokens[:sure], output.request_id
        assert pool.get_num_free_blocks() == idle
    assert traffic.preempted
