"""A tiny Llama served through vLLM's TRITON_ATTN and Foveate's, on a CPU: vLLM's kernels
themselves, in Triton's interpreter. No GPU has seen it.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.serving.engine import Answer, Served, check_same, prompts
from tests.serving.test_llama import check_against_transformers
from tests.serving.triton_interpreted import LENGTHS

QUARTER = "snapkv:budget=25%,window=8"


@pytest.fixture(scope="module")
def found(llama):
    """Of stock vLLM, of everything kept, and of a quarter."""
    return answered(llama, "", "snapkv:budget=100%,window=8", QUARTER)


def answered(*given):
    """What ``triton_interpreted`` prints, as it would be served here."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.serving.triton_interpreted", *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return [served(one) for one in json.loads(run.stdout.splitlines()[-1])]


def served(one):
    answers = [
        Answer(prompt, tokens, torch.tensor(logprobs))
        for prompt, tokens, logprobs in zip(
            prompts(LENGTHS), one["tokens"], one["logprobs"], strict=True
        )
    ]
    kept = {
        tuple(map(int, place.split(","))): torch.tensor(positions)
        for place, positions in one["kept"].items()
    }
    return Served(answers, one["free"], [], kept, {}, preemptions=0, idle=0, shared=[])


def test_keeping_everything_is_stock_triton_attn(found):
    stock, whole, _ = found
    check_same(whole, stock)


def test_a_quarter_equals_the_transformers_backend(llama, found):
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    check_against_transformers(model, QUARTER, found[2], block=16)


def test_a_quarter_frees_blocks(found):
    stock, _, quarter = found
    assert quarter.free[0] == stock.free[0]
    assert quarter.free[1] - stock.free[1] == 2  # of 41 tokens, 25 stay; of 30, 14
