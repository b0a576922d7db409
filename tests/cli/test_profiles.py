"""``foveate calibrate --share`` and ``foveate profiles``: profiles that are taken along."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveate.profiles import installed
from foveate.profiles.manifest import measured
from foveate.profiles.tensor_profile import load_tensors

from .conftest import Foveate, refused

PROMPT = {"prompt": "The room is 214, the phone 555. " * 3, "questions": ["Which room?", "Phone?"]}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of one prompt with questions."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(PROMPT) + "\n")
    return path


def test_what_is_shared_is_installed_and_taken(
    foveate: Foveate,
    as_json: Callable[..., Any],
    llama: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(installed.VARIABLE, str(tmp_path / "installed"))
    assert "No profile is installed" in foveate("profiles").stdout
    out = tmp_path / "shared"
    told = ("--model", llama, "--prompts", prompts, "--share", "--out", out)
    result = foveate("calibrate", "recommended", *told)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.splitlines()[2].startswith("fitted to damage")
    assert f"foveate profiles install {out}" in result.stdout
    said = json.loads((out / "manifest.json").read_text())
    profile = load_tensors(str(out / "recommended.safetensors"), "recommended")
    assert said["prompts"] | measured(prompts) == said["prompts"]
    for name in ("method", "model", "weights", "target"):
        assert said[name] == getattr(profile, name) != ""
    assert foveate("profiles", "install", out, "--model", llama.name).exit_code == 0
    (row,) = as_json("profiles")["profiles"]
    assert (row["model"], row["target"], row["shared"]) == (llama.name, profile.target, True)
    line = shlex.split(foveate("serve", llama, "--show").stdout)
    assert f"profile='{row['path']}'" in "".join(line) or row["path"] in "".join(line)
    asked = ("run", "--model", llama, "--prompt", PROMPT["prompt"], "--max-new-tokens", 2)
    rows = as_json(*asked, "--method", "recommended:budget=50%")["rows"]
    assert rows[1]["method"] == "recommended:profile=recommended.safetensors"
    assert foveate("profiles", "remove", row["path"]).stdout.startswith("removed: recommended on")
    assert as_json("profiles")["profiles"] == []


def test_what_cannot_be_done_with_profiles_is_said(
    foveate: Foveate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "installed"
    monkeypatch.setenv(installed.VARIABLE, str(place))
    assert "unknown action 'instal'" in refused(foveate("profiles", "instal", "x"))
    assert "needs the paths" in refused(foveate("profiles", "install"))
    assert "takes no paths" in refused(foveate("profiles", "list", "x"))
    assert "does not exist" in refused(foveate("profiles", "install", tmp_path / "none"))
    assert "no installed profile is at" in refused(foveate("profiles", "remove", place))
    (place / "broken").mkdir(parents=True)
    (place / "broken" / "recommended.safetensors").write_bytes(b"?")
    result = foveate("profiles")
    assert result.exit_code == 1
    assert "not a profile of tensors" in " ".join(result.stderr.split())
