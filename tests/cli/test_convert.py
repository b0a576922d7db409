"""``foveate convert``, and asking what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveate_lab.convert import convert
from tests.convert import originals

from .conftest import Foveate, refused

MODELS = ("llava", "mobilevlm", "internvl", "qwen_vl")


@pytest.mark.parametrize("name", MODELS)
def test_run_asks_what_convert_wrote(
    foveate: Foveate, as_json: Callable[..., Any], picture: Path, tmp_path: Path, name: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    getattr(originals, name)(old)
    tower = ["--vision", old / "clip"] if (old / "clip").exists() else []
    result = foveate("convert", old, new, *tower)
    assert result.exit_code == 0, result.stderr
    assert f"foveate run --model {new}" in result.stdout
    asked = ["--image", picture, "--prompt", "What is it?", "--max-new-tokens", 3]
    said = as_json("run", "--model", new, *asked, "--method", "snapkv:budget=60%,window=8")
    assert said["prompt"]["images"] == 1
    assert said["prompt"]["visual_tokens"] >= 9
    assert [row["method"] for row in said["rows"]] == ["full", "snapkv:window=8"]


def test_eval_asks_what_convert_wrote(foveate: Foveate, tmp_path: Path) -> None:
    originals.internvl(tmp_path / "old")
    convert(tmp_path / "old", tmp_path / "new")
    asked = ["--tasks", "document", "--methods", "snapkv:window=4", "--budgets", "60%"]
    out = tmp_path / "results"
    result = foveate("eval", "--model", tmp_path / "new", *asked, "--limit", 1, "--out", out)
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["spec"] for row in rows] == ["full", "snapkv:budget=60%,window=4"]


def test_what_is_no_original_is_refused(foveate: Foveate, llama: Path, tmp_path: Path) -> None:
    said = refused(foveate("convert", llama, tmp_path / "new"))
    assert "is not in the authors' layout of LLaVA-1.5" in said
    assert not (tmp_path / "new").exists()
