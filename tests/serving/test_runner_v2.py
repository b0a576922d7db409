"""vLLM's second model runner, in Triton's interpreter: the tokens, kept positions and blocks of the
first, with asynchronous scheduling and without.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import foveate
from foveate.backends.vllm.tiers import rooms_of
from foveate.core.profile import Profile
from tests.serving.engine import Answer, prompts
from tests.serving.reference import by_transformers, counted, counted_by_head
from tests.serving.v2_interpreted import LENGTHS, SIZES

SNAPKV, HEADKV = "snapkv:budget=50%,window=8", "headkv:budget=50%,window=8,profile={}"
LAYERS, HEADS, NOISE = 2, 2, 1e-3


@pytest.fixture(scope="module")
def small(llama, tmp_path_factory):
    """The folder of a Llama of two layers: in the interpreter, every one counts."""
    folder = tmp_path_factory.mktemp("small")
    config = AutoConfig.from_pretrained(llama)
    config.num_hidden_layers = LAYERS
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).float().eval().save_pretrained(folder)
    return str(folder)


def runs(model, kind, policies):
    """Of a process that serves under each policy in turn."""
    command = [sys.executable, "-m", "tests.serving.v2_interpreted", model, kind, *policies]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(model, policy, found):
    """Positions, tokens and log-probabilities are those of the transformers backend."""
    assert found["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    assert found["idle"] == 23
    policy = foveate.policy(policy)
    rooms = [r for (r,) in rooms_of([policy], LAYERS, HEADS, SIZES["max_model_len"])]
    for name, prompt in enumerate(prompts(LENGTHS)):
        by_head = len(rooms) > LAYERS
        same = (
            counted_by_head(policy, rooms, len(prompt), HEADS)[1]
            if by_head
            else counted(policy, rooms, len(prompt))[1]
        )
        answer = Answer(prompt, found["tokens"][name], None)
        positions, tokens, logprobs = by_transformers(model, same, answer)
        for layer, expected in enumerate(positions):
            mine = found["kept"].get(f"{name},{layer}")
            if mine is not None:
                assert mine == [head[head >= 0].tolist() for head in expected]
        assert tokens == answer.tokens
        likely = torch.tensor(found["logprobs"][name])
        torch.testing.assert_close(logprobs.topk(5).values, likely, rtol=0, atol=NOISE)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_second_runner_answers_as_transformers(small, kind):
    """Model runner V2, with asynchronous scheduling or without | works | tested in Triton's
    interpreter, on 0.32 and 0.33
    """
    headkv = Profile(
        method="headkv",
        model=small.split("/")[-1],
        layers=LAYERS,
        samples=1,
        budget="",
        by_layer=[[0.2, 3.0], [1.0, 0.1]],
    ).save(f"{small}/headkv.json")
    policies = [SNAPKV, HEADKV.format(headkv)]
    model = AutoModelForCausalLM.from_pretrained(small).eval()
    stock, *found = runs(small, kind, ["", *policies])
    for policy, one in zip(policies, found, strict=True):
        check(model, policy, one)
        assert one["kept"]
    late = int(kind == "async")  # blocks are freed when no step in flight reads them
    gaps = found[0]["free"][1 + late] - stock["free"][1 + late]
    assert gaps == 1  # of 70 tokens 38 stay, of 45 all
