"""Options that several commands share, their completion, and checks before any work is done.

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
from foveate.defaults import FRAMES, READS, SCANS, SEES, DtypeName
from foveate.errors import CannotWrite, InvalidBudget, InvalidInput, UnknownMethod, suggest
from foveate.policies.parameters import short_repr
from foveate.policies.spec import split

_OF_OTHERS = "foveate.methods"
_PLAIN = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(.*\))?\s*", re.DOTALL)


def method_names(incomplete: str) -> list[str]:
    """Return the names of methods that complete a word, or its last term after a plus sign."""
    before, plus, begun = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in foveate.METHOD_NAMES if name.startswith(begun)]


def known(value: Any) -> Any:
    """Return the value of an option (a spec, a list of them or None) once all methods are known.

    Raises:
        UnknownMethod: Foveate has no method of that name, and no other package adds methods.
        InvalidSpec: an unclosed parenthesis or quote.
    """
    for spec in [value] if isinstance(value, str) else value or ():
        for term in split(split(spec, ":")[0], "+"):
            match = _PLAIN.fullmatch(term)
            if match and match[1] not in ("policy", *foveate.METHOD_NAMES):
                if "foveate.policies.method" in sys.modules or entry_points(group=_OF_OTHERS):
                    break  # another package may have it
                names = foveate.METHOD_NAMES
                raise UnknownMethod(
                    f"no method named {short_repr(match[1])}. {suggest(match[1], names)}"
                )
    return value


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Return the annotation of an option with a value; ``metavar``: FILE, or N for a number."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Return the annotation of a flag, or of an option with fixed choices."""
    return typer.Option(name, help=help)


Images = Annotated[
    list[Path] | None, option("FILE", "Image file to ask about, e.g. page.png; repeatable.")
]
Videos = Annotated[
    list[Path] | None, option("FILE", "Video file, e.g. clip.mp4; repeatable.", "--video")
]
Fps = Annotated[
    float | None, option("R", "Frames per second to sample from a video, e.g. 0.5.", "--fps")
]
_FRAMES = f"Number of frames to sample from a video, evenly spaced, e.g. 16. [default: {FRAMES}]"
Frames = Annotated[int | None, option("N", _FRAMES, "--frames")]
Text = Annotated[
    str | None,
    option(
        "TEXT",
        "Question, e.g. 'What is the total?' [default: one about images or a text of Foveate's]",
    ),
]
AnswerLength = Annotated[
    int, option("N", "Maximum length of an answer in tokens, e.g. 128.", "--max-new-tokens", min=1)
]
Outside = Annotated[
    bool,
    flag(
        "--allow-outside",
        "Allow data to name files outside its own folder.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    flag(
        "--trust-remote-code",
        "Run Python code from the model's repository; it has all your permissions.",
    ),
]
_MAP = "Device map of transformers, e.g. auto: layers on all GPUs, the rest in main memory."
DeviceMap = Annotated[str | None, option("MAP", _MAP, "--device-map")]
Dtype = Annotated[
    DtypeName, flag("--dtype", "Data type of the weights, e.g. bfloat16; auto: as stored.")
]
Specs = Annotated[
    list[str] | None,
    option(
        "SPEC",
        "Method, e.g. snapkv or h2o:budget=256,recent=0.25; repeatable.",
        autocompletion=method_names,
        callback=known,
    ),
]


def bytes_of(option: str, text: str) -> int:
    """Return the number of bytes in the text of an option, such as 24GB or 512MiB.

    Raises:
        InvalidInput: the text is no number of bytes, or it is out of range.
    """
    from foveate.policies.amount import Amount

    try:
        amount = Amount.of(text)
    except InvalidBudget:  # its message is about budgets, not about this option
        amount = None
    if amount is None or amount.kind != "bytes":
        raise InvalidInput(
            f"{option} {text!r} is no number of bytes from 1 to 2^50: write 24GB or 512MiB, for "
            "example."
        )
    return int(amount.value)


def model_option(default: str) -> Any:
    """Return the annotation of --model, for a command whose model is ``default``."""
    shipped = f"{SEES} (drawn pages), {SCANS} (scanned documents) or {READS} (text only)"
    words = f"Model directory, e.g. ./model, hub id, or a model of Foveate: {shipped}."
    return option("MODEL", f"{words} [default: {default}]", show_default=False)


def named_path(text: str) -> Path:
    """Return the path that an option names.

    Raises:
        CannotWrite: the text is empty; ``Path`` would take it for the current directory. It is no
            InvalidInput, because that is a ValueError, whose message typer replaces.
    """
    if not text.strip():
        raise CannotWrite(f"{text!r} is no path: write . for the current directory.")
    return Path(text)


def check_file(what: str, option: str, path: Path) -> None:
    """Check before any work that an option's file can be written.

    Raises:
        InvalidInput: it is a directory, or its directory is missing or takes no files.
    """
    folder = path.absolute().parent
    if isdir(path):  # unlike Path.is_dir, it does not raise for names that are too long
        where = "is a directory. Name a file"
    elif not isdir(folder):
        where = "is in a directory that does not exist. Create it, or name another file"
    elif reason := _write_error(path):
        where = f"cannot be created ({reason}). Name a file in a directory that you can write to"
    else:
        return
    raise InvalidInput(f"the {what} cannot be written: {option} {str(path)!r} {where}.")


def check_folder(option: str, path: Path) -> None:
    """Check before any work that files can be written into an option's folder.

    Raises:
        InvalidInput: it or a folder above it is a file, or cannot be written to.
    """
    absolute = path.absolute()
    nearest = next(path for path in (absolute, *absolute.parents) if exists(path))
    if not isdir(nearest):
        where = f"{str(nearest)!r} is a file"
    elif reason := _write_error(nearest / "any"):
        where = f"{str(nearest)!r} is not writable ({reason})"
    else:
        return
    raise InvalidInput(
        f"nothing can be written to {option} {str(path)!r}: {where}. Name a directory that you can "
        "write to."
    )


def _write_error(path: Path) -> str:
    """Return the reason why a file cannot be written, or ""."""
    from foveate.data import files

    try:
        files.check_replaceable(path)
    except CannotWrite as error:
        return str(getattr(error.__cause__, "strerror", None) or error.__cause__)
    return ""
