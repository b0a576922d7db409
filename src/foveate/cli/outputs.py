"""Files and folders that commands write, checked before any work is done."""

from __future__ import annotations

from os.path import exists, isdir
from pathlib import Path

from foveate.errors import CannotWrite, InvalidInput


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
