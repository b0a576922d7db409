"""``foveate watch``: a video in a cache of bounded size, and answers about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import console, options
from foveate.cli.options import model_option, option
from foveate.defaults import SEES
from foveate.errors import FoveateError

if TYPE_CHECKING:
    from foveate.stream import Stream

_HELP = "Ask about the video. Ctrl-D ends."
_BUDGET = "2048"  # tokens, unless the method or --budget says otherwise


def watch(
    video: Annotated[Path, typer.Argument(metavar="VIDEO", help="Video file, e.g. film.mp4.")],
    model: Annotated[str, model_option(SEES)] = SEES,
    fps: Annotated[
        float, option("R", "Frames per second to sample from the video, e.g. 0.5.", "--fps")
    ] = 1.0,
    prompt: Annotated[
        list[str] | None,
        option("TEXT", "Question, e.g. 'What happens?'; repeatable. [default: read from stdin]"),
    ] = None,
    follow_up: Annotated[
        bool, options.flag("--follow-up", "Let the model read earlier questions and answers again.")
    ] = False,
    method: Annotated[
        str, option("SPEC", "Method that compresses between frames, e.g. hermes:budget=1024.")
    ] = "infinipotv",
    budget: Annotated[
        str,
        option("B", f"Budget of the stream, e.g. 512 (tokens) or 64MB. [default: {_BUDGET}]"),
    ] = "",
    max_new_tokens: options.AnswerLength = 64,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
) -> None:
    """Read a video into a cache of bounded size, and answer questions about it.

    The cache is compressed between frames, so it does not grow with the video. Answers go to stdout
    and everything else to stderr, so it works in a pipe: one question in, one answer out. After an
    error the next question is answered, and the exit status is 2.
    """
    from foveate.cli.chat.talk import under
    from foveate.cli.findings import after_video
    from foveate.data import VideoParts
    from foveate.data.clip import check_sampling
    from foveate.loading.model import load
    from foveate.stream import Stream

    check_sampling(fps, None)
    policy = under(method, budget or ("" if "budget=" in method else _BUDGET))
    film = VideoParts(video, 1, fps=fps)
    with console.progress(hidden=False) as bars, console.quiet():
        task = bars.add_task(f"loading {model}", total=None)
        loaded = load(model, trust_remote_code, device_map, dtype)
        stream = Stream(loaded.model, loaded.reader, policy, max_new_tokens=max_new_tokens)
        bars.reset(task, description=f"reading {film.name}", total=film.count)
        for clip in film:
            stream.see(clip)
            bars.advance(task)
    with stream:
        typer.echo(_summary(stream), err=True)
        failed = False
        for question in _questions(prompt or ()):
            if prompt:
                typer.echo(f"> {question}", err=True)
            failed = not _answer(stream, question, follow_up) or failed
    if prompt:
        typer.echo(f"\n{after_video(model, video, fps)}", err=True)
    if failed and (prompt or not sys.stdin.isatty()):
        raise typer.Exit(2)


def _answer(stream: Stream, question: str, follow_up: bool) -> bool:
    """Print the answer to a question, or its error; return True if there is an answer."""
    try:
        with console.quiet():
            for piece in stream.ask(question, follow_up=follow_up, stream=True):
                typer.echo(piece, nl=False)
        typer.echo()
    except FoveateError as error:
        typer.echo(f"Error: {error}", err=True)
        return False
    return True


def _questions(prompts: Sequence[str]) -> Iterator[str]:
    """Yield the questions of ``--prompt``, or else those typed or piped in."""
    from foveate.cli.chat.chat import read_lines

    if prompts:
        yield from prompts
        return
    live = sys.stdin.isatty()
    if live:
        typer.echo(_HELP, err=True)
    yield from read_lines(live, _HELP)


def _summary(stream: Stream) -> str:
    """Describe in two lines what the stream stores."""
    memory, frames = stream.held, stream.frames
    kept = ", ".join(f"{frame.time:.1f} s {frame.kept:.0%}" for frame in frames[:6])
    more = ", ..." if len(frames) > 6 else ""
    return (
        f"{memory.tokens:.0f} of {memory.seen} tokens stored, {memory.bytes / 2**20:,.1f} MiB "
        f"(at most {memory.bound / 2**20:,.1f} MiB)\n"
        f"left of {len(frames)} of {memory.images} frames: {kept}{more}"
    )
