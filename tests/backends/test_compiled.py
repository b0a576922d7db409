"""Decoding under ``torch.compile``: one graph, the same tokens, no new graph for every length."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.backends.compiled import STEPS


@pytest.mark.parametrize("spec", ["snapkv:budget=20,window=4", "adakv:budget=20,window=4"])
def test_a_step_is_traced_whole_and_says_the_same(spec):
    command = [sys.executable, "-m", "tests.backends.compiled", spec]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"]
    assert found["breaks"] == []
    assert found["graphs"] < STEPS
