"""Commands on a model's folder: what they found, what comes next, in a pipe and in 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Foveate

COLUMNS = 80
SHORT = ("--tokens", 128, "--rounds", 1, "--steps", 1)


@pytest.fixture
def said(foveate: Foveate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Foveate:
    """What a command prints on stdout, which is a pipe, after a check of what all have in common;
    it runs in an empty folder.
    """
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        result = foveate(*arguments)
        assert result.exit_code == 0, (result.stderr, result.exception)
        wide = [line for line in result.stdout.splitlines() if len(line.rstrip()) > COLUMNS]
        assert [line for line in wide if "/" not in line] == []
        assert "\x1b" not in result.output
        return result.stdout

    return run


def closing(text: str, lines: int) -> list[str]:
    """The last lines, as words."""
    return [" ".join(line.split()) for line in text.splitlines()[-lines:]]


def test_doctor_says_what_to_run(said: Foveate, llava: Path) -> None:
    assert f"\nNext: foveate run --model {llava}\n" in said("doctor", llava)


def test_run_says_what_makes_a_profile_and_what_asks_more(
    said: Foveate, llava: Path, picture: Path
) -> None:
    asked = ("--max-new-tokens", 3, "--rounds", 1)
    text = said("run", "--model", llava, "--image", picture, *asked)
    for name in ("full", "recommended", "snapkv", "lookm", "mixkv"):
        assert f"\n{name} " in text
    assert closing(text, 2) == [
        f"With its profile: foveate calibrate recommended --model {llava}",
        f"On more questions: foveate eval --model {llava} --out results",
    ]


def test_eval_prints_its_scores_and_report_what_its_page_has(said: Foveate, llava: Path) -> None:
    text = said("eval", "--model", llava, "--limit", 1, "--out", "results")
    assert text.startswith("results: 5 answers\n2 of them keep more than their budget")
    assert "Score, 95 % interval" in text
    assert closing(text, 1) == ["Next: foveate report results"]
    assert said("report", "results") == (
        "results/report.html: 5 answers, of 1 task, 5 policies, 1 sample.\n"
        "Open it in a browser; it needs no network.\n"
    )
    assert Path("results/report.html").is_file()


def test_lens_says_what_its_page_has(said: Foveate, llava: Path, picture: Path) -> None:
    text = said("lens", "--model", llava, "--image", picture, "--answers", "--max-new-tokens", 3)
    found, steps, answers, way = text.splitlines()
    assert found == "lens.html: what every head keeps of 51 tokens, 4 methods"
    assert steps == "at budgets of 20%, 33%, 50%, 75%."
    assert answers.endswith(" of 16 answers are the full cache's.")
    assert way == "Open it in a browser; it needs no network."


def test_calibrate_says_what_the_profile_says_and_who_takes_it(said: Foveate, llava: Path) -> None:
    text = said("calibrate", "recommended", "--model", llava, "--samples", 2)
    assert text.startswith("recommended.safetensors: recommended on ")
    assert "\nat 20% a head keeps, in percent:\n" in text
    spec = "recommended:budget=20%,profile=recommended.safetensors"
    assert closing(text, 4) == [
        f"Spec with this profile: {spec}",
        f"Next: foveate run --model {llava} \\",
        f"--method {spec}",
        f"To serve the model with it, move it to {llava}/foveate/recommended.safetensors",
    ]


def test_bench_says_what_it_left_out_and_what_asks_questions(said: Foveate, llava: Path) -> None:
    text = said("bench", "--model", llava, *SHORT)
    assert [line.split()[0] for line in text.splitlines() if "20%" in line] == [
        "recommended",
        "snapkv",
    ]
    assert "\nLeft out: other methods" in text
    assert closing(text, 1) == [f"Next: foveate eval --model {llava} --out results"]


def test_serve_shows_the_command_that_it_would_start(said: Foveate, llava: Path) -> None:
    (line,) = said("serve", llava, "--policy", "snapkv:budget=20%", "--show").splitlines()
    assert f" --model {llava} " in line
    assert """--additional-config '{"foveate": {"policy": "snapkv:budget=20%"}}'""" in line
