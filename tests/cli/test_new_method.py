"""A method of one's own package, with a stage of its own, is one file: nothing else changes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foveate as library
from foveate.errors import InvalidParameter
from foveate.policies.method import METHODS
from foveate.policies.spec import STAGES
from foveate.vllm.startup.support import check_parallel
from tests import zoo
from tests.conformance.compare import check_generate

from .conftest import Foveate

DOCS = Path(library.__file__).parents[2] / "docs"
SOURCE = '''
"""Theirs: what stands far from the mean key stays."""

from dataclasses import dataclass
from typing import ClassVar

from foveate.policies.amount import Amount
from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Paper, method
from foveate.policies.parameters import Share
from foveate.policies.policy import Policy
from foveate.policies.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


@stage("far_from_mean")
@dataclass(frozen=True, kw_only=True)
class FarFromMean:
    """The distance of a key to ``pull`` times the mean key."""

    head_by_head: ClassVar[bool] = True
    pull: Share = 1.0

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        k, held = layer.k.float(), layer.valid[..., None]
        mean = (k * held).sum(2, keepdim=True) / held.sum(2, keepdim=True)
        return Scores((k - self.pull * mean).norm(dim=-1))


@method(Paper(title="Theirs", authors=("Doe, Jane",), year=2026, venue="Somewhere",
              key="doe2026theirs", arxiv="2601.00001"))
def theirs(*, budget: Amount, pull: float = 1.0, recent: int = 4) -> Policy:
    """Keeps what stands far from the mean key."""
    return Policy(score=FarFromMean(pull=pull), budget=Uniform(amount=budget),
                  select=TopK(recent=recent))
'''


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The method, from a package that was written a moment ago."""
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        yield importlib.import_module("their_package").theirs
    finally:
        sys.modules.pop("their_package", None)
        METHODS.pop("theirs", None)
        STAGES.pop("far_from_mean", None)


@pytest.mark.usefixtures("theirs")
def test_the_command_line_lists_shows_cites_and_runs_it(
    foveate: Foveate, as_json: Callable[..., Any], llama: Path
) -> None:
    listed = {one["name"]: one for one in as_json("methods")}["theirs"]
    assert listed["summary"] == "Keeps what stands far from the mean key."
    assert [one["name"] for one in listed["parameters"]] == ["budget", "pull", "recent"]
    assert "far_from_mean(pull=0.5)" in foveate("show", "theirs:budget=20%,pull=0.5").stdout
    assert foveate("cite", "theirs").stdout.startswith("@")
    prompt = ("--prompt", "the quick brown fox jumps over the lazy dog " * 3)
    run = as_json(
        "run", "--model", llama, *prompt, "--method", "theirs:budget=50%", "--max-new-tokens", 2
    )
    assert run["rows"][-1]["method"] == "theirs"


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_it_is_exact_in_a_model(theirs: Any, family: str) -> None:
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 40))
    check_generate(model, theirs(budget="50%"), inputs)
    with library.compress(model, "theirs:budget=100%"):
        ours = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert torch.equal(ours, model.generate(**inputs, max_new_tokens=3, do_sample=False))


def test_its_parameters_are_checked_it_adds_up_and_it_is_served(theirs: Any) -> None:
    with pytest.raises(InvalidParameter, match="pull=2"):
        library.policy("theirs:budget=20%,pull=2.0")
    policy = library.policy("theirs+adakv.budget:budget=20%")
    assert policy.score == theirs(budget="20%").score
    check_parallel(theirs(budget="20%"), 2, 4)


@pytest.mark.usefixtures("theirs")
def test_the_documentation_gets_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "scripts")
    tables = importlib.import_module("tables")
    (row,) = [line for line in tables.methods().splitlines() if "`theirs`" in line]
    assert "Keeps what stands far from the mean key." in row
    assert "https://arxiv.org/abs/2601.00001" in row
