"""Records of a user's data, whose fields are read as the types that are expected of them."""

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
    """A JSON object or a row of a table. ``where`` it stands is said in errors: the file, and the
    line, or the record or row, counted from 0.

    A field may be asked for under several names: the first that is there is read. Each method
    raises InvalidInput where the field is missing or of another type.
    """

    held: Mapping[str, Any]
    where: str

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self.held.get(field) is not None

    def check_fields(self, known: Collection[str]) -> None:
        """Raise InvalidInput for a field of another name: it would be ignored."""
        for field in self.held:
            if field not in known:
                raise InvalidInput(
                    f"{self.where}: the field {field!r} is unknown. {suggest(field, known)}"
                )

    def text(self, *names: str) -> str:
        """A text."""
        return str(self._read(names, "a text", _is_text))

    def text_or_number(self, *names: str) -> str:
        """A text, or a number as a text."""
        return str(self._read(names, "a text or a number", _is_text_or_number))

    def texts(self, *names: str, at_least: int = 0) -> tuple[str, ...]:
        """A list of texts, of at least so many."""
        return tuple(self._read(names, _a_list("texts", at_least), _every(_is_text, at_least)))

    def texts_or_numbers(self, *names: str) -> tuple[str, ...]:
        """A list of texts and numbers, as texts."""
        values = self._read(names, "a list of texts or numbers", _every(_is_text_or_number))
        return tuple(map(str, values))

    def one_or_more(self, *names: str) -> tuple[str, ...]:
        """A list of texts and numbers, or one of them alone, as texts."""
        fits = _every(_is_text_or_number, at_least=1)
        expected = "a list of at least one text, or a text"
        values = self._read(names, expected, lambda v: fits(v) or _is_text_or_number(v))
        return tuple(map(str, values)) if isinstance(values, list) else (str(values),)

    def number(self, *names: str) -> int | float:
        """A finite number."""
        number: int | float = self._read(names, "a number", _is_number)
        return number

    def numbers(self, field: str, count: int) -> tuple[int | float, ...]:
        """A list of so many finite numbers."""
        fits = _every(_is_number)
        expected = f"a list of {count} numbers"
        return tuple(self._read((field,), expected, lambda v: fits(v) and len(v) == count))

    def index(self, field: str, count: int) -> int:
        """A whole number from 0 to below ``count``."""
        expected = f"a whole number from 0 to {count - 1}"
        return int(self._read((field,), expected, lambda v: type(v) is int and 0 <= v < count))

    def record(self, *names: str) -> Record:
        """An object."""
        return Record(self._read(names, "an object", _is_object), self.where)

    def records(self, field: str, at_least: int = 0) -> list[Record]:
        """A list of objects, of at least so many."""
        anything = _every(lambda value: True, at_least)
        values = self._read((field,), _a_list("objects", at_least), anything)
        return _listed(values, f"{self.where}, field {field!r}")

    def items(self) -> Iterator[tuple[str, Record]]:
        """The objects under all names."""
        for name in self.held:
            inner = self._read((name,), "an object", _is_object)
            yield name, Record(inner, f"{self.where}, record {name!r}")

    def also(self, **fields: Any) -> Record:
        """The record with other fields beside its own."""
        return Record({**self.held, **fields}, self.where)

    def _read(self, names: tuple[str, ...], expected: str, fits: Callable[[Any], bool]) -> Any:
        name = next((one for one in names if one in self.held), None)
        if name is None:
            wanted = " or ".join(map(repr, names))
            there = ", ".join(map(reprlib.repr, self.held)) or "none"
            raise InvalidInput(
                f"{self.where}: there is no field {wanted}, which has to be {expected}. Its "
                f"fields: {there}."
            )
        if not fits(value := self.held[name]):
            shown = reprlib.repr(value)
            raise InvalidInput(
                f"{self.where}: the field {name!r} is {shown}; it has to be {expected}."
            )
        return value


def read_records(path: Path) -> list[Record]:
    """The objects of a file that holds a JSON list of them, or (.jsonl) one in each line.

    Raises:
        InvalidInput: it cannot be read, or holds anything else.
    """
    if path.suffix == ".jsonl":
        return list(read_lines(path))
    held = read_json(path)
    if not isinstance(held, list):
        raise InvalidInput(f"{path}: it has to be a list of objects, not {reprlib.repr(held)}.")
    return _listed(held, str(path))


def read_lines(path: Path) -> Iterator[Record]:
    """The objects of a file of JSON lines; blank lines are none.

    Raises:
        InvalidInput: it cannot be read, or a line is no object.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _object(parse(line, where), where)


def read_record(path: Path) -> Record:
    """The object that a JSON file holds.

    Raises:
        InvalidInput: it cannot be read, or holds anything else.
    """
    return _object(read_json(path), str(path))


def read_named(path: Path) -> list[tuple[str, Record]]:
    """The objects of a JSON file that holds them under names, or a list of them, which have their
    numbers as names.

    Raises:
        InvalidInput: it cannot be read, or holds anything else.
    """
    held = read_json(path)
    if isinstance(held, list):
        return [(str(number), one) for number, one in enumerate(_listed(held, str(path)))]
    return list(_object(held, str(path)).items())


def _listed(held: list[Any], where: str) -> list[Record]:
    places = (f"{where}, record {number}" for number in range(len(held)))
    return [_object(one, place) for one, place in zip(held, places, strict=True)]


def _object(held: Any, where: str) -> Record:
    if not _is_object(held):
        raise InvalidInput(f"{where}: it has to be an object, not {reprlib.repr(held)}.")
    return Record(held, where)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_text(value: Any) -> bool:
    """Half of a surrogate pair, which JSON can spell, is no text that can be written anywhere."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _is_text_or_number(value: Any) -> bool:
    return _is_text(value) or _is_number(value)


def _every(fits: Callable[[Any], bool], at_least: int = 0) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and len(value) >= at_least and all(map(fits, value))
    )


def _a_list(of: str, at_least: int) -> str:
    return f"a list of {of}" + (f", at least {at_least}" if at_least else "")


def check_columns(path: Path, wanted: Iterable[str], there: Collection[str]) -> None:
    """Raise InvalidInput where a table lacks a column."""
    if missing := [name for name in wanted if name not in there]:
        raise InvalidInput(
            f"{str(path)!r} has no column {', '.join(missing)}; it has {', '.join(there)}."
        )
