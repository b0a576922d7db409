"""``foveate chat`` in a pipe and at a prompt."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from foveate.cli.app import app
from foveate.cli.chat import chat as command
from foveate.cli.chat.talk import ChatLine, read_line
from foveate.errors import InvalidInput
from tests.profiles import saved

HELD = re.compile(r"\[(?:\w+ ?\w*; )?(\d+) of (\d+) tokens stored, (\d+)%, [\d.]+ MiB\]")


@pytest.fixture
def piped(llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """What comes out of a chat into which these lines are piped, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*lines: str, options: tuple[str, ...] = ("--max-new-tokens", "3")) -> Result:
        arguments = ["chat", "--model", str(llava), *options]
        return CliRunner().invoke(app, arguments, input="".join(f"{line}\n" for line in lines))

    return run


def test_lines_are_answered_and_what_is_held_stands_under_each(piped: Any, picture: Path) -> None:
    done = piped(f"What is on '{picture}'?", "And the colours?", "", "/budget 24", "Left or right?")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("\n") == 3
    held = [list(map(int, one)) for one in HELD.findall(done.stderr)]
    seen = [one[1] for one in held]
    assert seen == sorted(seen)
    assert seen[0] > 30
    assert [one[0] / one[1] < 0.35 for one in held[:2]] == [True, True]
    assert held[2][0] <= 24 + 3
    assert "recommended:budget=24; the next turn reads the conversation again" in done.stderr


def test_an_image_may_come_in_a_line_before_the_question(piped: Any, picture: Path) -> None:
    together = piped(f"What is it? {picture}")
    apart = piped(str(picture), "What is it?")
    given = piped("What is it?", options=("--image", str(picture), "--max-new-tokens", "3"))
    assert "1 image(s): ask about them." in apart.stderr
    assert together.stdout == apart.stdout == given.stdout
    assert together.stdout != piped("What is it?").stdout


def test_a_video_comes_as_an_image_does(piped: Any, tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.videos import film

    path = film(tmp_path / "a film.mp4")
    done = piped(f"What is on '{path}'?", options=("--frames", "3", "--max-new-tokens", "3"))
    given = piped(
        "What is on ?", options=("--video", str(path), "--frames", "3", "--max-new-tokens", "3")
    )
    assert done.exit_code == 0, done.stderr
    assert "a film.mp4: 3 frames, from 0.0 to 2.9 s, as images" in done.stderr
    assert done.stdout == given.stdout
    ((_, seen, _),), ((_, alone, _),) = map(
        HELD.findall, (done.stderr, piped("What is on ?").stderr)
    )
    assert int(seen) >= int(alone) + 3 * 9


def test_a_turn_is_undone_and_usage_is_shown(piped: Any) -> None:
    done = piped("What is it?", "Why?", "/undo", "How?", "/usage")
    alone = piped("What is it?", "How?", "/usage")
    assert done.exit_code == 0, done.stderr
    assert "2 messages, " in done.stderr
    assert done.stdout.splitlines()[::2] == alone.stdout.splitlines()
    usage = r"2 answer\(s\): (\d+) tokens read, (\d+) reused, [2-6] generated; first token after "
    read, other = (re.search(usage, one.stderr) for one in (done, alone))
    assert read is not None
    assert other is not None
    assert read.groups() == other.groups()


def test_a_chat_is_forgotten_saved_loaded_and_answered_anew(piped: Any) -> None:
    asked, saved = "What is it?", "chat.safetensors"
    done = piped(asked, f"/save {saved}", "/retry", "/forget", asked, f"/load {saved}", "Why?")
    answers = done.stdout.splitlines()
    assert answers[0] == answers[1] == answers[2]
    seen = [int(one[1]) for one in HELD.findall(done.stderr)]
    assert seen[0] == seen[1] == seen[2] < seen[3]


def test_another_method_reads_the_conversation_anew(piped: Any) -> None:
    done = piped("What is it?", "/method snapkv:budget=50%,window=4", "And this?")
    first, second = HELD.findall(done.stderr)
    assert int(second[1]) > int(first[1])
    assert int(second[0]) > 0.45 * int(second[1])


def test_a_profile_is_named_without_its_folder(piped: Any, llava: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, "headkv", [[1.0, 2.0]] * 3, model=llava.name)
    done = piped(f"/method headkv:budget=50%,profile={path}", "What is it?")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("headkv:budget=50%,profile=headkv.json\n")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/nothing", "/nothing is unknown: /help lists the commands."),
        ("/budget", "/budget needs an argument"),
        ("/budget 400%", "400%"),
        ("What is on ./none.png?", "there is no image at './none.png'."),
        ("What is on ./none.mp4?", "there is no video file at './none.mp4'."),
        ("/load none.safetensors", "none.safetensors"),
        ("/retry", "there is no turn to answer again"),
    ],
)
def test_a_chat_in_a_pipe_goes_on_after_an_error(piped: Any, line: str, sentence: str) -> None:
    done = piped(line, "Hello")
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stdout == piped("Hello").stdout


@contextmanager
def interrupting() -> Iterator[None]:
    """Whenever a program handles interrupts by itself, it gets one."""
    over, before = Event(), signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while not over.wait(0.3):
            if signal.getsignal(signal.SIGINT) is not before:
                os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_an_interrupt_ends_the_answer_and_the_chat_goes_on(piped: Any) -> None:
    with interrupting():
        done = piped("What is it?", "And this?", options=("--max-new-tokens", "3000"))
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("[stopped; ") == 2


def test_an_interrupt_at_the_prompt_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    typed = iter([KeyboardInterrupt, "Hello", " ", EOFError])

    def asked(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", asked)
    assert list(command.read_lines(live=True)) == ["Hello"]
    assert "/quit or Ctrl-D ends the chat." in capsys.readouterr().err


def test_paths_are_found_as_terminals_write_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b.png", "c.JPG"):
        (tmp_path / name).touch()
    spaced, plain = str(tmp_path / "a b.png"), "c.JPG"
    escaped = spaced.replace(" ", "\\ ")
    address = "https://example.org/x.webp"
    assert read_line(f"What's on '{spaced}'?") == ChatLine("", "What's on ?", (spaced,))
    assert read_line(f'"{spaced}" {plain}, which?').images == (spaced, plain)
    assert read_line(f"{escaped} what is it?") == ChatLine("", "what is it?", (spaced,))
    assert read_line(f"file://{spaced.replace(' ', '%20')}") == ChatLine("", "", (spaced,))
    assert read_line(f"see {address}").images == (address,)
    (tmp_path / "d.MP4").touch()
    assert read_line("c.JPG, d.MP4: which?") == ChatLine("", ", : which?", (plain,), ("d.MP4",))
    assert read_line("is it a.png or b.gif?") == ChatLine("", "is it a.png or b.gif?")
    assert read_line("/save a b.safetensors") == ChatLine("save", "a b.safetensors")
    with pytest.raises(InvalidInput, match="there is no image at"):
        read_line("'x y.png' is what?")
