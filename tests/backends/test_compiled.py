"""Decoding under ``torch.compile``: one graph, the same tokens, no new graph for every length."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import zoo
from tests.backends.compiled import STEPS

SPECS = ("snapkv:budget=20,window=4", "adakv:budget=20,window=4")


@pytest.fixture(scope="module")
def traced():
    """What was found for every spec, with a cache that grows and with one that does not."""
    command = [sys.executable, "-m", "tests.backends.compiled", *SPECS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("spec", SPECS)
def test_a_step_is_traced_whole_and_says_the_same(spec, traced):
    found = traced[spec]["grows"]
    assert found["same"]
    # on 5.13.1 a traced step has a mask, by which ragged heads are padded and attended to
    assert found["to the bit"] or ("adakv" in spec and zoo.before("5.20.2"))
    assert found["breaks"] == []
    assert found["graphs"] < STEPS


@pytest.mark.parametrize("how", ["in place", "forward"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_model_compiled_before_its_block_keeps_and_says_the_same(spec, how, traced):
    assert traced[spec][how]


@pytest.mark.parametrize("spec", SPECS)
def test_a_cache_that_does_not_grow_needs_one_graph_of_fixed_shapes(spec, traced):
    found = traced[spec]["still"]
    assert found["same"]
    assert found["breaks"] == []
    assert found["graphs"] == 1
