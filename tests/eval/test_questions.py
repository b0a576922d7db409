"""Questions of one's own: what a line may say, how it is scored, and which frames are taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveate.data import read_video
from foveate.errors import InvalidInput, InvalidParameter
from foveate_lab.eval.questions import questions
from foveate_lab.eval.results import read
from foveate_lab.eval.tasks import find_tasks
from tests.cli.conftest import foveate, llava, picture, refused  # noqa: F401
from tests.videos import film, numbers

Write = Callable[..., Path]
ASKED = {"question": "what is seen ?", "answers": ["a red cat"]}


@pytest.fixture
def lines(tmp_path: Path) -> Write:
    """Writes a file of such lines beside a film."""
    film(tmp_path / "film.mp4")

    def write(*records: Any) -> Path:
        path = tmp_path / "mine.jsonl"
        path.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        return path

    return write


def test_a_line_is_a_question_about_what_it_names(lines: Write) -> None:
    chosen = {"question": "Which?", "choices": ["red", "blue"], "answer": "B", "name": "colour"}
    shown = {"videos": ["film.mp4"], "context": "Some words.", "labels": {"kind": "film"}}
    task = questions(lines({**ASKED, **shown}, chosen), frames=3)
    plain, lettered = task.samples(9, 0)
    assert (task.name, plain.name, lettered.name) == ("mine(frames=3)", "0", "colour")
    assert (plain.context, plain.labels) == ("Some words.", {"kind": "film"})
    taken = plain.videos[0].clip.frames
    assert numbers(taken) == numbers(read_video(plain.videos[0].path, frames=3).frames)
    assert [task.metric(said, plain) for said in ("It is a red cat.", "It is read.")] == [1, 0]
    assert [task.metric(said, lettered) for said in ("(B)", "A. red")] == [1, 0]
    assert len(list(task.samples(1, 0))) == 1


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ({"question": "?"}, "line 1: there is no field 'answers' or 'answer'"),
        ({"answers": ["x"]}, "line 1: there is no field 'question'"),
        ({**ASKED, "videos": ["other.mp4"]}, "field 'videos': .* holds no other.mp4"),
        ({**ASKED, "videos": ["../film.mp4"]}, "leads out of"),
        ({**ASKED, "choices": ["a", "b"], "answer": "a"}, "has to be a letter of a choice"),
    ],
)
def test_what_is_no_question_is_named(lines: Write, line: Any, match: str) -> None:
    task = questions(lines(line))
    with pytest.raises(InvalidInput, match=match):
        list(task.samples(9, 0))


def test_what_cannot_be_asked_is_refused(lines: Write) -> None:
    with pytest.raises(InvalidInput, match="is empty: give one question a line"):
        questions(lines())
    with pytest.raises(InvalidParameter, match="exclude each other"):
        questions(lines(ASKED), fps=1, frames=2)
    with pytest.raises(InvalidInput, match=r"line 2: .* 'image' is unknown. Did you mean 'images'"):
        questions(lines(ASKED, {**ASKED, "image": "receipt.png"}))


def test_a_film_of_ones_own_is_asked_about(
    foveate: Any,  # noqa: F811
    llava: Path,  # noqa: F811
    lines: Write,
    tmp_path: Path,
) -> None:
    path = lines({**ASKED, "videos": ["film.mp4"]})
    asked = ("eval", "--model", llava, "--methods", "knorm", "--budgets", "50%", "--timed", "0")
    out = tmp_path / "out"
    result = foveate(*asked, "--data", path, "--fps", "1", "--out", out)
    assert result.exit_code == 0, result.stderr
    rows = read(out).rows
    assert [(row["task"], row["visual_tokens"]) for row in rows] == [("mine(fps=1)", 3 * 9)] * 2
    resumed = foveate(*asked, "--data", path, "--fps", "1", "--out", out, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    plain = lines(ASKED)
    said = refused(foveate(*asked, "--data", plain, "--frames", "2", "--out", tmp_path / "b"))
    assert "--frames 2 is for videos, and no task has any" in said


def test_frames_of_a_benchmark_may_be_told_once(tmp_path: Path) -> None:
    films = {"fps": 2}
    assert find_tasks(f"videomme={tmp_path}", video_options=films)[0].name == "videomme(fps=2)"
    assert find_tasks(f"docvqa={tmp_path}", video_options=films)[0].name == "docvqa"
    with pytest.raises(InvalidParameter, match="sets frames itself, and --fps conflicts with it"):
        find_tasks(f"videomme(frames=8)={tmp_path}", video_options=films)
