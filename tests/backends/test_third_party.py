"""A score and a store of another package: listed, run, saved and loaded, by processes that import
nothing of that package.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import foveate
from foveate.errors import UnknownMethod
from tests import third_party

SPECS = (
    "value_spread_kv+half_kv:budget=50%",  # as methods
    "policy:score=value_spread(),budget=uniform(amount=50%),select=top_k(),store=half_store()",
    "adakv:budget=50%,window=4,store=half_store()",  # heads hold different numbers
    "value_spread_kv+half_kv:budget=20KB",
)
EXACT = "adakv:budget=50%,window=4"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return third_party.install(tmp_path_factory.mktemp("site"))


def run(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True
    )


def test_their_methods_are_listed_behind_foveates_own(environment):
    done = run(environment, "foveate", "methods", "--json")
    assert [one["name"] for one in json.loads(done.stdout)][-2:] == ["value_spread_kv", "half_kv"]


def test_what_they_hold_is_saved_and_loaded_by_a_process_that_starts_anew(environment, tmp_path):
    done = run(environment, "tests.third_party.reads", str(tmp_path), *SPECS, EXACT)
    assert not done.returncode, done.stderr
    (*saved, exact), (*loaded, _) = (torch.load(tmp_path / do) for do in ("save", "load"))
    for mine, again in zip(saved, loaded, strict=True):
        assert mine["kinds"] == again["kinds"] == {"HalfPairs"}
        assert torch.equal(mine["logits"], again["logits"])
        assert all(map(torch.equal, mine["columns"], again["columns"]))
    ragged, weighed = saved[2:]
    assert ragged["bytes"] < exact["bytes"]
    assert all(map(torch.equal, ragged["columns"], exact["columns"]))
    torch.testing.assert_close(ragged["logits"], exact["logits"], atol=1e-2, rtol=0)
    assert 19_000 < weighed["bytes"] <= 20_000


def test_without_the_package_the_stage_that_is_missing_is_named():
    with pytest.raises(UnknownMethod, match="no stage named 'half_store'"):
        foveate.policy(SPECS[2])
