"""``evaluate()``: what ``foveate eval`` does, as a function."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import foveate_lab
from foveate import policy
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate_lab import evaluate
from foveate_lab.eval.results import read
from foveate_lab.eval.tasks import find_task

PAGE = Path("docs/evaluation.md")
SPECS = ["full", "snapkv:budget=50%,window=4", "lookm:budget=50%"]


def test_a_loaded_model_is_evaluated_without_a_folder(loaded: Loaded) -> None:
    seen: list[tuple[str, int, int]] = []
    result = evaluate(
        loaded,
        ["document", find_task("chart")],
        methods=["snapkv:window=4", policy("lookm", budget=0.5)],
        budgets=["50%"],
        limit=2,
        advance=lambda *counts: seen.append(counts),
    )
    assert result.folder is None
    assert not result.refused
    assert [(cell.task, cell.spec) for cell in result.summary] == [
        (task, spec) for task in ("document", "chart") for spec in SPECS
    ]
    for cell in result.summary:
        assert cell.score is not None
        assert cell.score.low <= cell.score.mean <= cell.score.high
        assert cell.answered == 2
    assert seen == [("document", 0, 4), *[("document", 1, 4)] * 2, *[("chart", 1, 4)] * 2]


def test_a_policy_keeps_its_own_budget(loaded: Loaded) -> None:
    policies = [policy("lookm", budget=0.5), "knorm"]
    result = evaluate(loaded, "document", methods=policies, limit=1)
    assert result.configuration["specs"] == ["lookm:budget=50%", "knorm:budget=20%"]


def test_it_goes_on_with_its_folder(loaded: Loaded, tmp_path: Path) -> None:
    chosen = {"methods": "snapkv:window=4", "budgets": "50%", "limit": 2}
    first = evaluate(loaded, "document", out=tmp_path / "results", **chosen)
    with pytest.raises(InvalidInput, match="--resume"):
        evaluate(loaded, "document", out=tmp_path / "results", **chosen)
    again = evaluate(loaded, "document", out=tmp_path / "results", resume=True, **chosen)
    assert again.rows == first.rows == read(tmp_path / "results").rows
    assert again.folder == tmp_path / "results"


def test_refusals_are_counted(loaded: Loaded) -> None:
    result = evaluate(
        loaded, "document", methods="snapkv:window=8", budgets="1%", limit=1, strict=True
    )
    (refused,) = result.refused
    assert (refused.task, refused.times) == ("document", 1)


def test_a_callable_judge_is_named_in_the_configuration(loaded: Loaded) -> None:
    result = evaluate(loaded, "document", methods="knorm", limit=1, judge=_judge)
    assert result.configuration["judge"] == f"{__name__}:_judge"


def _judge(prompt: str) -> str:
    return "1.0"


def test_the_five_lines_of_the_page_run(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(
        r"```python\n(from foveate_lab import evaluate\n.*?)```", PAGE.read_text(), re.S
    )
    assert len(block.splitlines()) == 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(textwrap.dedent(block).replace('"demo"', repr(directory)), names)
    assert names["result"].summary  # type: ignore[attr-defined]


def test_the_laboratory_has_no_other_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'eval_all'"):
        foveate_lab.eval_all  # noqa: B018
