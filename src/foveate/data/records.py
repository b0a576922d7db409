"""Records of users' data, whose fields are read with a check of their types."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.data.texts import parse, read_json, read_text
from foveate.errors import InvalidInput, suggest


@dataclass(frozen=True)
class Record:
    """JSON object or row of a table.

    ``where`` is its location in errors: the file, and the line, record or row, counted from 0.
    Methods read the first field that exists of several names. They raise InvalidInput if the field
    is missing or of another type.
    """

    fields: Mapping[str, Any]
    where: str

    def has(self, field: str) -> bool:
        """Return True if the field exists and is not null."""
        return self.fields.get(field) is not None

    def check_fields(self, known: Collection[str]) -> None:
        """Raise InvalidInput for an unknown field, which would be ignored."""
        for field in self.fields:
            if field not in known:
                raise InvalidInput(
                    f"{self.where}: the field {field!r} is unknown. {suggest(field, known)}"
                )

    def text(self, *names: str) -> str:
        """Read a text."""
        return str(self._read(names, "a text", _is_text))

    def text_or_number(self, *names: str) -> str:
        """Read a text, or a number as a text."""
        return str(self._read(names, "a text or a number", _is_text_or_number))

    def texts(self, *names: str, at_least: int = 0) -> tuple[str, ...]:
        """Read a list of texts, of at least ``at_least``."""
        return tuple(self._read(names, _list_name("texts", at_least), _list_of(_is_text, at_least)))

    def texts_or_numbers(self, *names: str) -> tuple[str, ...]:
        """Read a list of texts and numbers, as texts."""
        values = self._read(names, "a list of texts or numbers", _list_of(_is_text_or_number))
        return tuple(map(str, values))

    def one_or_more(self, *names: str) -> tuple[str, ...]:
        """Read a list of texts and numbers, or a single one, as texts."""
        fits = _list_of(_is_text_or_number, at_least=1)
        expected = "a list of at least one text, or a text"
        values = self._read(names, expected, lambda v: fits(v) or _is_text_or_number(v))
        return tuple(map(str, values)) if isinstance(values, list) else (str(values),)

    def number(self, *names: str) -> int | float:
        """Read a finite number."""
        number: int | float = self._read(names, "a number", _is_number)
        return number

    def numbers(self, field: str, count: int) -> tuple[int | float, ...]:
        """Read a list of ``count`` finite numbers."""
        fits = _list_of(_is_number)
        expected = f"a list of {count} numbers"
        return tuple(self._read((field,), expected, lambda v: fits(v) and len(v) == count))

    def index(self, field: str, count: int) -> int:
        """Read an integer from 0 to below ``count``."""
        expected = f"a whole number from 0 to {count - 1}"
        return int(self._read((field,), expected, lambda v: type(v) is int and 0 <= v < count))

    def record(self, *names: str) -> Record:
        """Read an object."""
        return Record(self._read(names, "an object", _is_object), self.where)

    def records(self, field: str, at_least: int = 0) -> list[Record]:
        """Read a list of objects, of at least ``at_least``."""
        anything = _list_of(lambda value: True, at_least)
        values = self._read((field,), _list_name("objects", at_least), anything)
        return _to_records(values, f"{self.where}, field {field!r}")

    def items(self) -> Iterator[tuple[str, Record]]:
        """Yield all fields, each of which is an object, with their names."""
        for name in self.fields:
            inner = self._read((name,), "an object", _is_object)
            yield name, Record(inner, f"{self.where}, record {name!r}")

    def also(self, **fields: Any) -> Record:
        """Return the record with more fields."""
        return Record({**self.fields, **fields}, self.where)

    def _read(self, names: tuple[str, ...], expected: str, fits: Callable[[Any], bool]) -> Any:
        name = next((candidate for candidate in names if candidate in self.fields), None)
        if name is None:
            alternatives = " or ".join(map(repr, names))
            existing = ", ".join(map(reprlib.repr, self.fields)) or "none"
            raise InvalidInput(
                f"{self.where}: there is no field {alternatives}, which must be {expected}. Its "
                f"fields: {existing}."
            )
        if not fits(value := self.fields[name]):
            excerpt = reprlib.repr(value)
            raise InvalidInput(
                f"{self.where}: the field {name!r} is {excerpt}; it must be {expected}."
            )
        return value


def read_records(path: Path) -> list[Record]:
    """Return the objects of a JSON file with a list of them, or of a .jsonl file.

    Raises:
        InvalidInput: the file cannot be read, or has other content.
    """
    if path.suffix == ".jsonl":
        return list(read_lines(path))
    content = read_json(path)
    if not isinstance(content, list):
        raise InvalidInput(f"{path}: it must be a list of objects, not {reprlib.repr(content)}.")
    return _to_records(content, str(path))


def read_lines(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON lines file, without blank lines.

    Raises:
        InvalidInput: the file cannot be read, or a line is no object.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _to_record(parse(line, where), where)


def read_record(path: Path) -> Record:
    """Return the object in a JSON file.

    Raises:
        InvalidInput: the file cannot be read, or has other content.
    """
    return _to_record(read_json(path), str(path))


def read_named(path: Path) -> list[tuple[str, Record]]:
    """Return the named objects of a JSON file; those of a list have their indices as names.

    Raises:
        InvalidInput: the file cannot be read, or has other content.
    """
    content = read_json(path)
    if isinstance(content, list):
        return [(str(number), item) for number, item in enumerate(_to_records(content, str(path)))]
    return list(_to_record(content, str(path)).items())


def _to_records(items: list[Any], where: str) -> list[Record]:
    locations = (f"{where}, record {number}" for number in range(len(items)))
    return [_to_record(item, location) for item, location in zip(items, locations, strict=True)]


def _to_record(value: Any, where: str) -> Record:
    if not _is_object(value):
        raise InvalidInput(f"{where}: it must be an object, not {reprlib.repr(value)}.")
    return Record(value, where)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_text(value: Any) -> bool:
    """Return True for a text without lone surrogates: JSON can spell them, UTF-8 cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _is_text_or_number(value: Any) -> bool:
    return _is_text(value) or _is_number(value)


def _list_of(fits: Callable[[Any], bool], at_least: int = 0) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and len(value) >= at_least and all(map(fits, value))
    )


def _list_name(of: str, at_least: int) -> str:
    return f"a list of {of}" + (f", at least {at_least}" if at_least else "")


def check_columns(path: Path, required: Iterable[str], existing: Collection[str]) -> None:
    """Raise InvalidInput if a table lacks a column."""
    if missing := [name for name in required if name not in existing]:
        raise InvalidInput(
            f"{str(path)!r} has no column {', '.join(missing)}; it has {', '.join(existing)}."
        )
