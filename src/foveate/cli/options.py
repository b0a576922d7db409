"""Options of several commands: the model, the question, the images, the methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foveate.cli.completion import known, method_names
from foveate.defaults import FRAMES, READS, SEES, DtypeName
from foveate.errors import InvalidBudget, InvalidInput

Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="An image to ask about; repeatable.")
]
Videos = Annotated[
    list[Path] | None, typer.Option("--video", metavar="FILE", help="A video; repeatable.")
]
Fps = Annotated[
    float | None,
    typer.Option("--fps", metavar="R", help="Frames a second that are taken of a video."),
]
Frames = Annotated[
    int | None,
    typer.Option(
        "--frames",
        metavar="N",
        help=f"Frames that are taken of a video, at even distances. [default: {FRAMES}]",
        show_default=False,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What to ask. [default: about images that come along]"),
]
Outside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Data may name any file that you can read, not only those of its own folder.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that a model brings along: it can do all that you can.",
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        metavar="MAP",
        help="auto: layers on all GPUs, as transformers spreads them, the rest in main memory.",
    ),
]
Dtype = Annotated[
    DtypeName,
    typer.Option("--dtype", help="Of the weights; auto is as they are stored."),
]
Specs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help="snapkv, or h2o:budget=256,recent=0.25; repeatable.",
        autocompletion=method_names,
        callback=known,
    ),
]


def bytes_of(option: str, text: str) -> int:
    """Return the bytes that an option gives, such as 24GB or 512MiB.

    Raises:
        InvalidInput: it gives no number of bytes, or one out of range.
    """
    from foveate.policies.amount import Amount

    try:
        amount = Amount.of(text)
    except InvalidBudget:  # whose message is about budgets
        amount = None
    if amount is None or amount.kind != "bytes":
        raise InvalidInput(
            f"{option} {text!r} is no number of bytes from 1 to 2^50: write 24GB or 512MiB, for "
            "example."
        )
    return int(amount.value)


def model_option(default: str) -> Any:
    """The option --model of several commands."""
    shipped = f"{SEES} (sees) or {READS} (text only)"
    words = f"A directory, a hub id, or what comes with Foveate: {shipped}. [default: {default}]"
    return typer.Option(metavar="MODEL", help=words, show_default=False)
