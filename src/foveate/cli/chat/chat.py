"""``foveate chat``: a conversation in a terminal, or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import console, options
from foveate.cli.options import model_option, option
from foveate.defaults import SEES
from foveate.errors import FoveateError

if TYPE_CHECKING:
    from foveate.cli.chat.talk import Talk

_HOW_TO_END = "/quit or Ctrl-D ends the chat."
_NO_PAGE = "This model reads printed pages only: give the path of an image in a line."


def chat(
    model: Annotated[str, model_option(SEES)] = SEES,
    image: options.Images = None,
    video: options.Videos = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    method: Annotated[
        str, option("SPEC", "Method for the conversation, e.g. snapkv or snapkv:budget=20%.")
    ] = "",
    budget: Annotated[
        str, option("B", "Budget of the conversation, e.g. 20%, 256 (tokens) or 64MB.")
    ] = "",
    system: Annotated[str, option("TEXT", "System prompt, e.g. 'Answer briefly.'")] = "",
    max_new_tokens: options.AnswerLength = 256,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
) -> None:
    """Chat with a model about images and videos, in one compressed cache.

    Type the path of an image or video in a line, or drag it into the window. Below each answer is
    the size of the stored conversation. Answers go to stdout and everything else to stderr, so it
    works in a pipe: one line in, one answer out. /help lists the commands.
    """
    from foveate.cli.chat.talk import HELP, Talk, under
    from foveate.cli.policies import ON_THE_DEMO, is_demo
    from foveate.cli.prompt import clips_of
    from foveate.cli.tables import short
    from foveate.data import read_image
    from foveate.data.clip import check_sampling
    from foveate.loading.model import load, reads_pages

    spec = method or (ON_THE_DEMO[0] if is_demo(model) else "recommended:budget=20%")
    policy = under(spec, budget)
    for path in image or ():
        read_image(path)  # raises before the model is loaded if the file is no image
    check_sampling(fps, frames)
    clips = clips_of(video, fps, frames) if video else []  # typed lines may name more
    with console.progress(hidden=False) as bars, console.quiet():
        bars.add_task(f"loading {model}", total=None)
        loaded = load(model, trust_remote_code, device_map, dtype)
        # these models' template numbers images: typed lines may add more
        template = {"add_vision_id": True} if reads_pages(model) else {}
        talk = Talk(loaded, policy, max_new_tokens, system, template)
    talk.images += map(str, image or ())
    talk.sampling = fps, frames
    talk.watch(clips)
    live = sys.stdin.isatty()
    if reads_pages(model) and not image and not video:
        typer.echo(_NO_PAGE, err=True)
    if live:
        typer.echo(f"{loaded.name}, {short(policy.spec)}\n{HELP}\n", err=True)
    with console.quiet():
        _run_chat(talk, live)


def _run_chat(talk: Talk, live: bool) -> None:
    """Answer lines until the chat ends; after an error in a pipe the exit status is 2."""
    failed = False
    for line in read_lines(live):
        try:
            if not talk.take(line):
                break
        except FoveateError as error:
            failed = True
            typer.echo(f"Error: {error}", err=True)
    if failed and not live:
        raise typer.Exit(2)


def read_lines(live: bool, how_to_end: str = _HOW_TO_END) -> Iterator[str]:
    """Yield lines that are typed or piped in, without empty ones; Ctrl-C shows ``how_to_end``."""
    if not live:
        yield from (line for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):  # importing it gives input() line editing and a history
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            typer.echo(f"\n{how_to_end}", err=True)
            continue
        except EOFError:
            typer.echo(err=True)
            return
        if line.strip():
            yield line
