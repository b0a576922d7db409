"""Strict reading of files, texts and JSON."""

from __future__ import annotations

import codecs
import json
import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from foveate.data.missing_data import is_pointer
from foveate.errors import InvalidInput

# UTF-32's little-endian mark begins with UTF-16's, so it comes first.
ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def check_file(path: Path, name: str = "") -> None:
    """Raise InvalidInput unless the path is a regular file.

    ``name`` is its name in errors, by default the path.
    """
    name = name or repr(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InvalidInput(f"{name} cannot be read: it does not exist. Check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InvalidInput(f"{name} cannot be read: {reason(error)}. Check the path.") from error
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InvalidInput(f"{name} cannot be read: it is {kind}. Give a file.")


def read_bytes(path: Path, name: str = "") -> bytes:
    """Return a file's content.

    Raises:
        InvalidInput: it is no regular file, cannot be read, or is a pointer of Git LFS.
    """
    check_file(path, name)
    try:
        content = path.read_bytes()
    except (OSError, MemoryError) as error:
        raise InvalidInput(
            f"{name or repr(str(path))} cannot be read: {reason(error)}. Check the file."
        ) from error
    if is_pointer(content):
        raise InvalidInput(
            f"{name or repr(str(path))} is a pointer of Git LFS to a file that was not downloaded. "
            "Run git lfs pull, or download the file itself."
        )
    return content


def read_text(path: Path) -> str:
    r"""Return a file's text in UTF-8, or as its byte-order mark says; line ends become "\n".

    Raises:
        InvalidInput: the file cannot be read, or is not in that encoding.
    """
    content = read_bytes(path)
    encoding = next((name for mark, name in ENCODINGS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{str(path)!r} cannot be read: line {line} is not in {encoding} ({error.reason} at "
            f"byte {error.start}). Save it as UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; see :func:`parse`."""
    return parse(read_text(path), str(path))


def parse(text: str, where: str) -> Any:
    """Parse a JSON text, whose numbers must be finite and whose keys must be unique.

    Raises:
        InvalidInput: it is no such JSON; the message begins with ``where``.
    """
    try:
        return json.loads(
            text,
            parse_constant=_check_finite,
            parse_float=_check_finite,
            object_pairs_hook=_check_unique,
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


def _check_finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no JSON number, or too large")
    return value


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        ((duplicate, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {duplicate!r} occurs twice in one object")
    return distinct


def reason(error: BaseException) -> str:
    """Return an error's message, or its type's name if that is empty."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return message.rstrip(".") or type(error).__name__
