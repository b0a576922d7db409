"""Decoding under ``torch.compile``: one graph, the same tokens, no new graph for every length."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest
import torch
from packaging.version import Version

from tests import zoo
from tests.backends.compiled import STEPS

DENSE, RAGGED = "snapkv:budget=20,window=4", "adakv:budget=20,window=4"


USUAL = (f"{RAGGED}@grows", f"{DENSE}@in place", f"{DENSE}@still")


@cache
def process_of(*asked):
    """What a process of its own finds: for those that are not slow, one does."""
    command = [sys.executable, "-m", "tests.backends.compiled", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True))


def found_of(spec, way):
    asked = f"{spec}@{way}"
    return process_of(*(USUAL if asked in USUAL else (asked,)))[asked]


@pytest.mark.parametrize("spec", [pytest.param(DENSE, marks=pytest.mark.slow), RAGGED])
def test_a_step_is_traced_whole_and_says_the_same(spec):
    found = found_of(spec, "grows")
    assert found["same"]
    # on 5.13.1, and with PyTorch 2.8, a traced step has a mask, by which ragged heads are padded
    # and attended to; 2.13 was the next one that was tried
    masked = zoo.before("5.20.2") or Version(torch.__version__) < Version("2.13")
    assert found["to the bit"] or ("adakv" in spec and masked)
    assert found["breaks"] == []
    assert found["graphs"] < STEPS


@pytest.mark.parametrize(
    ("spec", "how"),
    [(DENSE, "in place"), pytest.param(RAGGED, "forward", marks=pytest.mark.slow)],
)
def test_a_model_compiled_before_its_block_keeps_and_says_the_same(spec, how):
    assert found_of(spec, how)


@pytest.mark.parametrize("spec", [DENSE, pytest.param(RAGGED, marks=pytest.mark.slow)])
def test_a_cache_that_does_not_grow_needs_one_graph_of_fixed_shapes(spec):
    found = found_of(spec, "still")
    assert found["same"]
    assert found["breaks"] == []
    assert found["graphs"] == 1
