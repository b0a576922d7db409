"""``foveate eval --preset``: the cost beforehand, the page and the archive afterwards."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from transformers import ProcessorMixin
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import InvalidInput
from foveate_lab.eval.bundle import read_bundle
from foveate_lab.eval.presets import PRESETS, methods_of, tasks_of
from foveate_lab.eval.probe import cost_of
from tests.browser import OpenPage, browser, chromium, open_page, overflow
from tests.chat.families import PROCESSORS
from tests.zoo.catalogue import fresh

__all__ = ["browser", "chromium", "open_page"]

FIRST_HOUR = PRESETS["first-hour"]
FEW = ("--tasks", "document,chart", "--methods", "snapkv:window=4", "--budgets", "50%")


def preset(*arguments: object) -> Any:
    command = ["eval", "--preset", "first-hour", *map(str, arguments)]
    return CliRunner().invoke(app, command)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take most of their time."""
    monkeypatch.setattr("foveate_lab.report.page.figures", lambda rows: [])


@pytest.mark.usefixtures("undrawn")
def test_a_preset_ends_with_a_page_and_an_archive(
    directory: str, tmp_path: Path, open_page: OpenPage
) -> None:
    out = tmp_path / "mine"
    result = preset(directory, *FEW, "--limit", 3, "--out", out, "--yes")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "on this machine" in result.stderr
    assert "Downloads" in result.stderr
    configuration = json.loads((out / "run.json").read_text())
    assert (configuration["model"], configuration["limit"]) == (directory, 3)
    with tarfile.open(tmp_path / "mine.tar.gz") as archive:
        archive.extractall(tmp_path / "received", filter="data")
    received = read_bundle(tmp_path / "received" / "mine")
    assert received.manifest is not None
    assert received.stored.rows == read_bundle(out).stored.rows
    for width in (390, 1280):
        with open_page(out / "report.html", width) as shown:
            heads = [text.strip() for text in shown.locator("th").all_inner_texts()]
            columns = {"score", "same answers", "KV MiB", "prefill", "first token", "a token"}
            assert columns <= set(heads)
            assert overflow(shown) == []
    again = preset(directory, *FEW, "--limit", 3, "--out", out, "--resume")
    assert again.exit_code == 0, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava_next", "gemma3"])
def test_a_preset_runs_under_its_policies_on_other_families(family: str, tmp_path: Path) -> None:
    model, out = tmp_path / family, tmp_path / "out"
    fresh(family).save_pretrained(model)
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        PROCESSORS[family]().save_pretrained(model)
    tasks = "document,chart,eight_people"  # generated ones, as the benchmarks are not here
    result = preset(model, "--tasks", tasks, "--limit", 1, "--out", out, "--yes")
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = read_bundle(out).stored.rows
    assert len(rows) == 3 * 6
    assert not [row["error"] for row in rows if "error" in row]


def test_a_preset_does_not_ask_in_a_pipe(directory: str, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    result = preset(directory, *FEW, "--limit", 1, "--out", out)
    assert result.exit_code == 2
    assert "Add --yes" in result.stderr
    assert not out.exists()


def test_missing_benchmarks_are_named_with_the_commands_that_fetch_them(
    directory: str, tmp_path: Path
) -> None:
    (tmp_path / "docvqa").mkdir()
    result = preset(directory, "--data", tmp_path, "--yes")
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("  hf download ")]
    assert len(lines) == 3
    assert all(f"--local-dir {tmp_path}/" in line for line in lines)
    assert "--tasks document,chart,three_people,text_needle" in result.stderr
    for slot in FIRST_HOUR.slots:
        (tmp_path / slot.folder).mkdir(exist_ok=True)
    named = tasks_of(FIRST_HOUR, directory, tmp_path).split(",")
    assert named[0] == f"docvqa={tmp_path}/docvqa"
    assert len(named) == 4


def test_a_model_that_ships_is_asked_about_generated_pages_under_five_policies() -> None:
    assert tasks_of(FIRST_HOUR, "demo", None) == "document,chart,three_people,text_needle"
    with pytest.raises(InvalidInput, match="4 of 4 benchmarks are missing in 'nowhere'"):
        tasks_of(FIRST_HOUR, "demo", Path("nowhere"))
    methods = methods_of(FIRST_HOUR, "demo").split(",")
    assert [method.partition(":")[0] for method in methods] == [
        *("random", "recommended", "snapkv", "lookm", "mixkv")
    ]


def test_options_that_contradict_each_other_are_refused(directory: str, tmp_path: Path) -> None:
    result = preset(directory, "--model", "demo", "--yes")
    assert "are two models: name one" in result.stderr
    result = preset(directory, "--executor", "ray", "--yes")
    assert "Leave --executor ray out" in result.stderr
    (tmp_path / "mine.jsonl").write_text("{}\n")
    assert "is no folder" in preset(directory, "--data", tmp_path / "mine.jsonl").stderr
    result = CliRunner().invoke(app, ["eval", directory])
    assert (result.exit_code, "--out is missing" in result.stderr) == (2, True)


def test_the_cost_is_that_of_the_samples_after_the_first_of_each_task() -> None:
    def rows(task: str, sample: int, seconds: float) -> list[dict[str, Any]]:
        about = {"task": task, "sample": str(sample), "spent_s": seconds}
        return [{**about, "spec": spec, "tokens": 100 + sample} for spec in ("full", "knorm")]

    found = [*rows("a", 0, 60.0), *rows("a", 1, 1.0), *rows("a", 2, 2.0), *rows("b", 0, 5.0)]
    refused = {"task": "b", "sample": "1", "spec": "full", "error": {}}
    cost = cost_of([*found, refused], 10)
    assert cost.seconds == 10 * (2 * 1.5 + 2 * 5.0)
    assert cost.tokens == 10 * (101.5 + 100)
    assert cost.memory > 50_000_000
