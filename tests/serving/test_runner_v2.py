"""vLLM's second model runner, in Triton's interpreter: the tokens, kept positions and blocks of the
first, with asynchronous scheduling and without.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import foveate
from tests.profiles import saved
from tests.serving.engine import Answer, prompts
from tests.serving.expected import under_blocks
from tests.serving.following import same
from tests.serving.reference import NOISE, by_transformers
from tests.serving.v2_interpreted import LENGTHS, SIZES

SNAPKV, HEADKV = "snapkv:budget=50%,window=8", "headkv:budget=50%,window=8,profile={}"
OTHER = "h2o:budget=30%"
AGAIN = "snapkv:budget=40,window=8,when=over_budget(every=32,reading=true)"
LAYERS, HEADS = 2, 2
FULL_POOL = {"lengths": [94] * 4, "tokens": 8, "num_gpu_blocks_override": 12}
RUNS = {
    "stock": {},
    "as on GPUs": {"policy": HEADKV, "as_on_gpus": True},  # the first that counts prompts
    "snapkv": {"policy": SNAPKV},
    "headkv": {"policy": HEADKV},
    "chunks": {"policy": SNAPKV, "max_num_batched_tokens": 23},  # of 70 tokens, the last is alone
    "preempted": {"policy": SNAPKV} | FULL_POOL,
    "asked": {
        "policy": SNAPKV,
        "policies": [OTHER],
        "asked": [{"foveate_policy": OTHER}, {"foveate_policy": "full"}],
    },
    "fails": {"policy": SNAPKV, "fails": LENGTHS[0]},
    "again": {
        "policy": AGAIN,
        "lengths": [126],
        "tokens": 34,
        "max_model_len": 192,
        "num_gpu_blocks_override": 6,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 23,
    },
}


@pytest.fixture(scope="module")
def small(llama, tmp_path_factory):
    """The folder of a Llama of two layers: in the interpreter, every one counts."""
    folder = tmp_path_factory.mktemp("small")
    config = AutoConfig.from_pretrained(llama)
    config.num_hidden_layers = LAYERS
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).float().eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def headkv(small):
    """The policy, with a profile of that model."""
    heads = [[0.2, 3.0], [1.0, 0.1]]
    return HEADKV.format(saved(Path(small), "headkv", heads, small.split("/")[-1]))


@pytest.fixture(scope="module", params=["sync", "async"])
def found(request, small, headkv):
    """What all runs found, by name, in one process."""
    asked = {
        name: run | ({"policy": headkv} if run.get("policy") == HEADKV else {})
        for name, run in RUNS.items()
    }
    command = [sys.executable, "-m", "tests.serving.v2_interpreted", small, request.param]
    command += [json.dumps(run) for run in asked.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
    answered = dict(zip(RUNS, json.loads(done.stdout.splitlines()[-1]), strict=True))
    for one in answered.values():
        assert one["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
        assert one["ahead"] == (request.param == "async")
    return answered


@pytest.fixture(scope="module")
def model(small):
    return AutoModelForCausalLM.from_pretrained(small).eval()


def check(model, policies, run, lengths=LENGTHS):
    """Positions, tokens and log-probabilities are those of the transformers backend."""
    for name, (policy, prompt) in enumerate(zip(policies, prompts(lengths), strict=True)):
        longest = SIZES["max_model_len"]
        same = foveate.policy(policy or "full")
        same = under_blocks(same, model.config, len(prompt), longest, block=32) if policy else same
        answer = Answer(prompt, run["tokens"][name], None)
        positions, tokens, logprobs = by_transformers(model, same, answer)
        for layer, expected in enumerate(positions):
            mine = run["kept"].get(f"{name},{layer}")
            if mine is not None:
                assert mine == [head[head >= 0].tolist() for head in expected]
        assert tokens == answer.tokens
        likely = torch.tensor(run["logprobs"][name])
        torch.testing.assert_close(logprobs.topk(5).values, likely, rtol=0, atol=NOISE)


@pytest.mark.parametrize("name", ["snapkv", "headkv", "chunks"])
def test_the_second_runner_answers_as_transformers(model, headkv, found, name):
    """Model runner V2, with asynchronous scheduling or without | works | tested in Triton's
    interpreter, on 0.32 and 0.33
    """
    policy = headkv if name == "headkv" else SNAPKV
    check(model, [policy] * len(LENGTHS), found[name])
    assert found[name]["kept"]
    assert found[name]["idle"] == 23


def test_blocks_are_freed_once_no_step_in_flight_reads_them(found):
    late = int(found["stock"]["ahead"])
    gaps = found["snapkv"]["free"][1 + late] - found["stock"]["free"][1 + late]
    assert gaps == 1  # of 70 tokens 38 stay, of 45 all
    assert found["snapkv"]["free"][late] == found["stock"]["free"][late]


def test_a_preempted_request_is_a_new_one_to_the_second_runner(model, found):
    check(model, [SNAPKV] * 4, found["preempted"], FULL_POOL["lengths"])
    assert found["preempted"]["preemptions"] > 0
    assert found["preempted"]["idle"] == 11


def test_an_engine_that_begins_as_on_a_gpu_counts_prompts_alone(model, headkv, found):
    """It measures what graphs take, and warms up with requests that it makes up."""
    check(model, [headkv] * len(LENGTHS), found["as on GPUs"])
    assert (found["as on GPUs"]["warmed"], found["as on GPUs"]["counted"]) == (0, len(LENGTHS))


def test_requests_choose_in_the_second_runner(model, found):
    check(model, [OTHER, None], found["asked"])
    assert {place.split(",")[0] for place in found["asked"]["kept"]} == {"0"}


def test_the_second_runner_compresses_while_it_reads_and_answers(model, found):
    """In a pool of five blocks, which holds the prompt and its answer compressed alone; its passes
    end before boundaries.
    """
    run = found["again"]
    (prompt,), (boundaries,) = prompts([126]), run["boundaries"]
    kept = {(layer, tokens): torch.tensor(positions) for layer, tokens, positions in boundaries}
    answer = Answer(prompt, run["tokens"][0], torch.tensor(run["logprobs"][0]))
    assert same(model, AGAIN, answer, kept) == [96, 126, 158]
    assert run["idle"] == 5


def test_a_prompt_that_cannot_be_compressed_fails_alone(found):
    assert found["fails"]["ended"]["0"][0] == "error"
    assert found["fails"]["ended"]["1"] == ["length", found["stock"]["tokens"][1]]
    assert found["fails"]["idle"] == 23
