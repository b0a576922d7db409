"""Files, texts and JSON, read strictly."""

from __future__ import annotations

import codecs
import json
import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from foveate.data.leftovers import is_pointer
from foveate.errors import InvalidInput

# UTF-32's little-endian mark begins with UTF-16's, so it is looked for first.
ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def check_file(path: Path, name: str = "") -> None:
    """Raises InvalidInput unless a file is there; a directory, a pipe or a device is none. ``name``
    is what errors call it, by default its path.
    """
    name = name or repr(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InvalidInput(f"{name} cannot be read: it does not exist. Check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: no name that a file can have
        raise InvalidInput(f"{name} cannot be read: {reason(error)}. Check the path.") from error
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InvalidInput(f"{name} cannot be read: it is {what}. Give a file.")


def read_bytes(path: Path, name: str = "") -> bytes:
    """What a file holds.

    Raises:
        InvalidInput: see :func:`check_file`; or it cannot be read, or is a pointer of Git LFS.
    """
    check_file(path, name)
    try:
        held = path.read_bytes()
    except (OSError, MemoryError) as error:
        raise InvalidInput(
            f"{name or repr(str(path))} cannot be read: {reason(error)}. Check the file."
        ) from error
    if is_pointer(held):
        raise InvalidInput(
            f"{name or repr(str(path))} is a pointer of Git LFS to a file that was not downloaded. "
            "Run git lfs pull, or download the file itself."
        )
    return held


def read_text(path: Path) -> str:
    r"""The text of a file in UTF-8, or in what its byte-order mark names; lines end with "\n".

    Raises:
        InvalidInput: it cannot be read, or is not in that encoding.
    """
    held = read_bytes(path)
    encoding = next((name for mark, name in ENCODINGS if held.startswith(mark)), "utf-8")
    try:
        text = held.decode(encoding)
    except UnicodeDecodeError as error:
        line = held.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{str(path)!r} cannot be read: line {line} is not in {encoding} ({error.reason} at "
            f"byte {error.start}). Save it as UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> Any:
    """The JSON that a file holds; see :func:`parse`."""
    return parse(read_text(path), str(path))


def parse(text: str, where: str) -> Any:
    """The value of a JSON text, all of whose numbers are finite and all of whose keys are distinct.

    Raises:
        InvalidInput: it is none; ``where`` says where it stands.
    """
    try:
        return json.loads(
            text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_distinct
        )
    except RecursionError as error:
        raise InvalidInput(f"{where}: no JSON that can be read: it is nested too deep.") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise InvalidInput(
            f"{where}: no JSON: {error.msg} at {line}column {error.colno}."
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{where}: no JSON: {error}.") from error


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no number that JSON has, or too large")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is there twice in one object, so one would be lost")
    return distinct


def reason(error: BaseException) -> str:
    """What an error says, or what it is where it says nothing."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said.rstrip(".") or type(error).__name__
