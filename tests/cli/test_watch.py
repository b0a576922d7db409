"""``foveate watch``: a video is read with bounded memory, and questions about it are answered."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.data import read_video
from foveate.errors import InvalidInput
from foveate.loading.model import load
from foveate.stream import Stream
from tests.videos import film

from .conftest import Foveate

command = import_module("foveate.cli.watch")
SUMMARY = re.compile(
    r"(\d+) of (\d+) tokens stored, [\d.]+ MiB \(at most [\d.]+ MiB\)\s+"
    r"left of (\d+) of (\d+) frames: (.+)"
)
POLICY = "infinipotv:budget=48,every=16"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return film(tmp_path / "film.mp4")


def arguments(llava: Path, clip: Path) -> list[str]:
    return ["watch", str(clip), "--model", str(llava), "--fps", "10", "--max-new-tokens", "3"]


def test_questions_are_answered_as_a_stream_does(foveate: Foveate, llava: Path, clip: Path) -> None:
    asked = ("--method", POLICY, "--prompt", "what is it ?", "--prompt", "and now ?")
    done = foveate(*arguments(llava, clip), *asked)
    assert done.exit_code == 0, done.stderr
    found = SUMMARY.search(done.stderr)
    assert found is not None
    stored, seen, left, frames = map(int, found.groups()[:4])
    assert stored < 48 + 16 < seen
    assert left < frames == 30
    assert re.match(r"\d\.\d s \d+%(, \d\.\d s \d+%)+", found[5])
    loaded = load(str(llava))
    stream = Stream(loaded.model, loaded.reader, POLICY, max_new_tokens=3)
    sampled = read_video(clip, fps=10)
    for image, time in zip(sampled.images, sampled.times.tolist(), strict=True):
        stream.see(image, time=time)
    answers = [stream.ask(question).text for question in ("what is it ?", "and now ?")]
    assert [line.strip() for line in done.stdout.splitlines()] == answers
    assert f"foveate watch {clip} --model {llava} --fps 10\n" in done.stderr.replace("\n ", "")


def test_questions_may_come_through_a_pipe(llava: Path, clip: Path) -> None:
    options = [*arguments(llava, clip), "--budget", "64", "--follow-up"]
    done = CliRunner().invoke(app, options, input="what is it ?\n\nand now ?\n")
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_a_pipe_goes_on_after_an_error(
    llava: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Stream.ask

    def answer(self: Stream, question: str, **options: Any) -> Any:
        if "fail" in question:
            raise InvalidInput("no such frame.")
        return ask(self, question, **options)

    monkeypatch.setattr(Stream, "ask", answer)
    options = [*arguments(llava, clip), "--budget", "64"]
    done = CliRunner().invoke(app, options, input="fail\nwhat is it ?\n")
    assert done.exit_code == 2
    assert "Error: no such frame.\n" in done.stderr
    assert len(done.stdout.splitlines()) == 1  # the second question's answer


def test_a_terminal_is_told_how_to_ask_and_how_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter([KeyboardInterrupt(), "what is it ?", EOFError()])

    def answer(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert list(command._questions(())) == ["what is it ?"]
    shown = capsys.readouterr().err
    assert shown.count("Ask about the video. Ctrl-D ends.") == 2  # at first, and after Ctrl-C
    assert "/quit" not in shown


def test_what_cannot_be_read_is_one_line(foveate: Foveate, llava: Path, clip: Path) -> None:
    missing = foveate("watch", clip.with_name("none.mp4"), "--model", llava)
    assert missing.exit_code == 2
    assert missing.stderr.count("\n") == 1
    share = foveate(*arguments(llava, clip), "--budget", "20%")
    assert share.exit_code == 2
    assert "share of a prompt that never ends" in share.stderr
