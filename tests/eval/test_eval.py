"""``foveate eval``: results that grow answer by answer, survive a kill, and go on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.compression import budgeting
from foveate_lab.eval.bundle import read_bundle
from foveate_lab.eval.results import MANIFEST

SETTINGS = [
    "--tasks",
    "document,chart",
    "--methods",
    "oracle,snapkv:window=4,lookm",
    "--budgets",
    "50%",
    "--limit",
    "3",
]
TIMES = {"prefill_s", "compress_s", "decode_s_per_token", "spent_s"}


def evaluated(directory: str, out: Path, *more: str) -> Any:
    return CliRunner().invoke(
        app, ["eval", "--model", directory, "--out", str(out), *SETTINGS, *more]
    )


def rows_in(out: Path) -> list[dict[str, Any]]:
    text = (out / "rows.jsonl").read_text()
    assert text.endswith("\n")
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take most of their time: tests/report has those."""
    monkeypatch.setattr("foveate_lab.report.page.figures", lambda rows: [])


@pytest.fixture(scope="module")
def whole(directory: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "results"
    result = evaluated(directory, out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return out


def test_there_is_a_row_for_every_sample_and_contender(whole: Path) -> None:
    rows = rows_in(whole)
    specs = json.loads((whole / "run.json").read_text())["specs"]
    assert [(row["task"], row["sample"], row["spec"]) for row in rows] == [
        (task, str(n), spec)
        for task in ("document", "chart")
        for n in range(3)
        for spec in ("full", *specs)
    ]
    assert len(specs) == 3
    configuration = json.loads((whole / "run.json").read_text())
    assert configuration["protocol"] == "query-aware"
    assert configuration["specs"][:2] == ["oracle:budget=50%", "snapkv:budget=50%,window=4"]
    assert configuration["versions"].keys() == {"python", "foveate", "torch", "transformers"}
    assert all(0 <= row["score"] <= 1 and row["device"] == "cpu" for row in rows)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_goes_on_and_ends_as_one_that_was_not(
    whole: Path, directory: str, tmp_path: Path, kills: int
) -> None:
    out = tmp_path / "results"
    command = [sys.executable, "-m", "tests.eval.killing", "eval", str(kills), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--model", directory, *SETTINGS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) == kills
    assert rows_in(out) == rows_in(whole)
    assert (out / "run.json").read_bytes() == (whole / "run.json").read_bytes()
    assert {path.name for path in out.iterdir()} == {"run.json", "rows.jsonl", MANIFEST, ".lock"}


def test_batches_go_on_as_they_were_whatever_was_there(
    whole: Path, directory: str, tmp_path: Path
) -> None:
    """What is timed is asked alone; who is beside whom does not go by what lacks an answer."""
    out, settings = tmp_path / "results", ("--timed", "1", "--batch", "2")
    assert evaluated(directory, out, *settings).exit_code == 0
    rows = rows_in(out)
    names = ("task", "sample", "spec", "question", "tokens", "kept_tokens", "kv_bytes")
    assert [[row[n] for n in names] for row in rows] == [
        [row[n] for n in names] for row in rows_in(whole)
    ]
    assert {(row["sample"], row.get("batch", 1)) for row in rows} == {("0", 1), ("1", 2), ("2", 2)}
    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    (out / "rows.jsonl").write_text("".join(lines[n] for n in range(len(lines)) if n % 3))
    assert evaluated(directory, out, *settings, "--resume").exit_code == 0
    assert rows_in(out) == rows
    result = evaluated(directory, out, "--timed", "1", "--resume")
    assert result.exit_code == 2
    assert "holds results of batch=2, not 1" in result.stderr.replace("\n│ ", "")
    result = evaluated(directory, tmp_path / "none", "--batch", "2")
    assert result.exit_code == 2
    assert "--timed 3 answers all of 3 samples one by one" in result.stderr


def test_a_finished_run_is_a_bundle_whose_rows_name_their_questions(whole: Path) -> None:
    manifest = read_bundle(whole).manifest
    assert manifest is not None
    assert (manifest["rows"], manifest["refused"]) == (len(rows_in(whole)), 0)
    assert manifest["questions"] == {"document": 3, "chart": 3}
    asked = {(row["task"], row["sample"], row["question"]) for row in rows_in(whole)}
    assert len(asked) == len({question for *_, question in asked}) == 6


def test_a_budget_that_is_raised_is_told_by_its_row(
    directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The prompts have 49, 57 and 48 tokens: half of two of them is less than the window."""
    monkeypatch.setattr(budgeting, "_warned", set())
    asked = ["--tasks", "document", "--methods", "snapkv:window=26,random", "--budgets", "50%"]
    result = evaluated(directory, tmp_path / "results", *asked)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "9 answers\n2 of them keep more than their budget" in result.stdout
    (warning,) = [text for text in caplog.messages if "always keeps 26" in text]
    assert warning.endswith("once per policy. --strict raises an error instead.")
    told = [line.split() for line in result.stdout.splitlines() if line.startswith("random ")]
    assert [words[1] for words in told] == ["50%"]
    assert re.search(r" 0\.\d\d \(0\.\d\d to \d\.\d\d\) +\d+% +\d\.\d\d$", result.stdout, re.M)
    assert result.stdout.endswith(f"Next: foveate report {tmp_path / 'results'}\n")
    rows = {(row["sample"], row["spec"]): row for row in rows_in(tmp_path / "results")}
    told = [
        tuple(rows[n, f"{spec}"][name] for name in ("asked_tokens", "kept_tokens", "raised"))
        for spec in ("full", "snapkv:budget=50%,window=26", "random:budget=50%")
        for n in "012"
    ]
    whole = [(float(n), float(n), False) for n in (49, 57, 48)]
    assert told[:3] == whole
    assert told[3:6] == [(24.0, 26.0, True), (28.0, 28.0, False), (24.0, 26.0, True)]
    assert told[6:] == [(float(n), float(n), False) for n in (24, 28, 24)]


def test_a_budget_that_no_prompt_has_is_refused_at_once(directory: str, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = evaluated(directory, out, "--methods", "snapkv", "--budgets", "20", "--strict")
    assert result.exit_code == 2
    assert "the 32 tokens that are always kept" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize("tasks", ["", " ", ","])
def test_no_task_is_refused_before_anything_is_written(
    directory: str, tmp_path: Path, tasks: str
) -> None:
    out = tmp_path / "results"
    result = evaluated(directory, out, "--tasks", tasks)
    assert result.exit_code == 2
    assert "names no task. Known: " in result.stderr
    assert not out.exists()


@pytest.mark.usefixtures("undrawn")
def test_results_of_before_go_on(whole: Path, directory: str, tmp_path: Path) -> None:
    """Earlier versions did not say whether a run was strict, or what a row was asked for."""
    out = tmp_path / "results"
    shutil.copytree(whole, out)
    configuration = json.loads((out / "run.json").read_text())
    assert configuration.pop("strict") is False
    (out / "run.json").write_text(json.dumps(configuration))
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        del row["asked_tokens"], row["raised"]
    first = "".join(json.dumps(row) + "\n" for row in rows[:-5])
    (out / "rows.jsonl").write_text(first)
    assert evaluated(directory, out, "--resume", "--strict").exit_code == 2
    result = evaluated(directory, out, "--resume")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert (out / "rows.jsonl").read_text().startswith(first)
    assert len(rows_in(out)) == len(rows)
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0


@pytest.mark.usefixtures("undrawn")
def test_what_is_refused_is_a_row_and_the_run_goes_on(directory: str, tmp_path: Path) -> None:
    """As above, where budgets are taken as they are."""
    asked = [
        "--strict",
        "--tasks",
        "document",
        "--methods",
        "snapkv:window=26,random",
        "--budgets",
        "50%",
        "--timed",
        "1",
    ]
    spec, out = "snapkv:budget=50%,window=26", tmp_path / "results"
    texts = []
    for more in ([], ["--resume"]):  # which tries what was refused again
        result = evaluated(directory, out, *asked, *more)
        assert result.exit_code == 3, (result.stderr, result.exception)
        assert "7 answers, 2 refused" in result.stdout
        assert "2 of 3" in result.stdout
        texts.append((out / "rows.jsonl").read_text())
    assert texts[0] == texts[1]
    refused = {(row["sample"], row["spec"]): row["error"] for row in rows_in(out) if "error" in row}
    assert refused.keys() == {("0", spec), ("2", spec)}
    assert {error["type"] for error in refused.values()} == {"InvalidBudget"}
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "1 of 3" in page
    assert "2 of the samples, first <bdi>0</bdi>: <bdi>InvalidBudget: " in page


def test_results_are_not_mixed_with_others(whole: Path, directory: str) -> None:
    before = (whole / "rows.jsonl").read_bytes()
    again = evaluated(directory, whole)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    other = evaluated(directory, whole, "--resume", "--seed", "1")
    assert other.exit_code == 2
    assert "seed=0, not 1" in other.stderr
    assert (whole / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tasks", "documents"], "no task named 'documents'. Did you mean 'document'?"),
        (["--methods", "snapvk"], "Did you mean 'snapkv'?"),
        (["--methods", "oracle:window=3"], "the oracle has a budget and nothing else"),
        (["--budgets", "0%"], "keeps nothing"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_loaded(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(
        app, ["eval", "--model", "nowhere", "--out", str(tmp_path / "x"), *arguments]
    )
    assert result.exit_code == 2
    assert says in result.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_judge_scores_and_without_one_the_command_says_so(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "mm-vet"
    (data / "images").mkdir(parents=True)
    Image.new("RGB", (30, 30)).save(data / "images" / "a.png")
    record = {"imagename": "a.png", "question": "x?", "answer": "a b c", "capability": ["rec"]}
    (data / "mm-vet.json").write_text(json.dumps({"v1_0": record}))
    module = SimpleNamespace(ask=lambda prompt: "0.4")
    monkeypatch.setitem(sys.modules, "my_judge", module)
    command = [
        "eval",
        "--model",
        directory,
        "--tasks",
        f"mm_vet(longest=4)={data}",
        "--budgets",
        "50%",
        "--methods",
        "random",
        "--timed",
        "0",
        "--out",
    ]
    for more, score in (([], None), (["--judge", "my_judge:ask"], 0.4)):
        out = tmp_path / str(score)
        result = CliRunner().invoke(app, [*command, str(out), *more])
        assert result.exit_code == 0, (result.stderr, result.exception)
        assert ("no --judge, so its scores stay empty" in result.stderr) == (score is None)
        rows = rows_in(out)
        assert [row["score"] for row in rows] == [score, score]
        assert all(row["reference_nll"] > 0 for row in rows)
        report = CliRunner().invoke(app, ["report", str(out)])
        assert report.exit_code == 0, report.exception
        assert ("needs a judge" in (out / "report.html").read_text()) == (score is None)
