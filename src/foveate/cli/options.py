"""Options of several commands: the model, the question, the images, the methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foveate.cli.completion import known, method_names
from foveate.defaults import FRAMES, READS, SEES, DtypeName
from foveate.errors import InvalidBudget, InvalidInput


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Return the annotation of an option that takes a value, such as FILE, or N for a number."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Return the annotation of a flag, or of an option whose choices stand for its value."""
    return typer.Option(name, help=help)


Images = Annotated[list[Path] | None, option("FILE", "An image to ask about; repeatable.")]
Videos = Annotated[list[Path] | None, option("FILE", "A video; repeatable.", "--video")]
Fps = Annotated[float | None, option("R", "Frames a second that are taken of a video.", "--fps")]
_FRAMES = f"Frames that are taken of a video, at even distances. [default: {FRAMES}]"
Frames = Annotated[int | None, option("N", _FRAMES, "--frames")]
Text = Annotated[str | None, option("TEXT", "What to ask. [default: about images that come along]")]
AnswerLength = Annotated[
    int, option("N", "The most tokens of an answer.", "--max-new-tokens", min=1)
]
Outside = Annotated[
    bool,
    flag(
        "--allow-outside",
        "Data may name any file that you can read, not only those of its own folder.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    flag(
        "--trust-remote-code",
        "Run the Python code that a model brings along: it can do all that you can.",
    ),
]
_MAP = "auto: layers on all GPUs, as transformers spreads them, the rest in main memory."
DeviceMap = Annotated[str | None, option("MAP", _MAP, "--device-map")]
Dtype = Annotated[DtypeName, flag("--dtype", "Of the weights; auto is as they are stored.")]
Specs = Annotated[
    list[str] | None,
    option(
        "SPEC",
        "snapkv, or h2o:budget=256,recent=0.25; repeatable.",
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
    return option("MODEL", words, show_default=False)
