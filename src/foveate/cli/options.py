"""Options of several commands, their completion, and what is refused before any work is done.
Nothing here imports PyTorch, which takes seconds.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import entry_points
from os.path import exists, isdir
from pathlib import Path
from typing import Annotated, Any

import typer

import foveate
from foveate.defaults import FRAMES, READS, SEES, DtypeName
from foveate.errors import CannotWrite, InvalidBudget, InvalidInput, UnknownMethod, suggest
from foveate.policies.parameters import short_repr
from foveate.policies.spec import split

_OF_OTHERS = "foveate.methods"
_PLAIN = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(.*\))?\s*", re.DOTALL)


def method_names(incomplete: str) -> list[str]:
    """Return names of methods; after a plus sign those of what may be added."""
    before, plus, begun = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in foveate.METHOD_NAMES if name.startswith(begun)]


def known(given: Any) -> Any:
    """Return a spec, a list of them or None, once its methods are known ones.

    Raises:
        UnknownMethod: Foveate has no method of that name, and other packages have none at all.
        InvalidSpec: an unclosed parenthesis or quote.
    """
    for spec in [given] if isinstance(given, str) else given or ():
        for term in split(split(spec, ":")[0], "+"):
            match = _PLAIN.fullmatch(term)
            if match and match[1] not in ("policy", *foveate.METHOD_NAMES):
                if "foveate.policies.method" in sys.modules or entry_points(group=_OF_OTHERS):
                    break  # another package may have it
                names = foveate.METHOD_NAMES
                raise UnknownMethod(
                    f"no method named {short_repr(match[1])}. {suggest(match[1], names)}"
                )
    return given


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


def named_path(text: str) -> Path:
    """Return the path that an option names.

    Raises:
        CannotWrite: the text is empty, which ``Path`` would take for the current directory. Of a
            ValueError, such as InvalidInput, typer would make a message of its own.
    """
    if not text.strip():
        raise CannotWrite(f"{text!r} names no file or directory: write . for the current one.")
    return Path(text)


def check_file(what: str, option: str, path: Path) -> None:
    """Refuse the file of an option that could not be written.

    Raises:
        InvalidInput: it is a directory, or its directory is missing or takes no files.
    """
    folder = path.absolute().parent
    if isdir(path):  # which, unlike Path.is_dir, raises nothing for names that are too long
        where = "is a directory. Name a file"
    elif not isdir(folder):
        where = "stands in a directory that does not exist. Make it, or name another file"
    elif reason := _refusal(path):
        where = f"cannot be made ({reason}). Name a file in a directory that you can write to"
    else:
        return
    raise InvalidInput(f"the {what} cannot be written: {option} {str(path)!r} {where}.")


def check_folder(option: str, path: Path) -> None:
    """Refuse the folder of an option that could not be made, or that takes no files.

    Raises:
        InvalidInput: it or a folder above it is a file, or is not to be written to.
    """
    absolute = path.absolute()
    nearest = next(each for each in (absolute, *absolute.parents) if exists(each))
    if not isdir(nearest):
        where = f"{str(nearest)!r} is a file"
    elif reason := _refusal(nearest / "any"):
        where = f"{str(nearest)!r} takes no files ({reason})"
    else:
        return
    raise InvalidInput(
        f"nothing can be written to {option} {str(path)!r}: {where}. Name a directory that you can "
        "write to."
    )


def _refusal(path: Path) -> str:
    """Return why a file cannot be written, or nothing."""
    from foveate.data import files

    try:
        files.check_replaceable(path)
    except CannotWrite as error:
        return str(getattr(error.__cause__, "strerror", None) or error.__cause__)
    return ""
