"""What a release and a contributor meet in the repository: its files parse, and agree."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import foveate

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_changelog_and_citation_name_one_release() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    releases = re.findall(r"^## (\d\S*) - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    if releases:  # none has been published before the first
        assert releases[0] == (foveate.__version__, str(citation["date-released"]))
    assert citation["version"] == foveate.__version__


def test_the_extra_takes_the_demo_that_is_here() -> None:
    demo = tomllib.loads(read("demo_model/pyproject.toml"))["project"]["version"]
    (extra,) = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]["demo"]
    minor = demo.rpartition(".")[0]
    following = f"0.{int(minor.partition('.')[2]) + 1}"
    assert extra == f"foveate-demo>={minor},<{following}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(path: Path) -> None:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    made = [shlex.split(line)[1] for line in commands if line.startswith("make ")]
    assert set(made) <= targets
    assert made or ".ci/run" in commands


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_what_helps(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    names = [part["id"] for part in form["body"]]
    assert len(set(names)) == len(names)
    words = path.read_text(encoding="utf-8")
    for page in re.findall(r"[A-Za-z_/]+\.md", words):
        assert (ROOT / page).is_file()
