"""Texts, JSON and the fields of records: read whole and as declared, or refused by place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from foveate.data import Record, read_lines, read_record, read_records, read_text
from foveate.errors import InvalidInput

WORDS = '{"prompt": "Wäre das \U0001f600?"}'


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-32"],  # the last two write a mark, too
)
def test_a_byte_order_mark_says_how_a_text_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(f"{WORDS}\r\n\r\n{WORDS}\r".encode(encoding))
    assert read_text(path) == f"{WORDS}\n\n{WORDS}\n"
    first, second = read_lines(path)
    assert first.text("prompt") == "Wäre das \U0001f600?"
    assert second.where == f"{path}, line 3"


def test_what_is_no_text_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"{}\n{}\n\xe4\n")
    with pytest.raises(InvalidInput, match=r"prompts.jsonl' .* line 3 is not in utf-8 .* as UTF-8"):
        read_text(path)
    os.mkfifo(tmp_path / "pipe")
    for other, says in (
        ("pipe", "a pipe or a device"),
        ("no", "does not exist"),
        ("", "directory"),
    ):
        with pytest.raises(InvalidInput, match=says):
            read_text(tmp_path / other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "at column 2"),
        ('{"a":\n }', "at line 2, column 2"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no"),
        ('{"a": 1e999}', "1e999 is no .* too large"),
        (f'{{"a": {"9" * 5000}}}', "integer string"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' * 100_000, "nested too deep"),
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ("", "at column 1"),
        ("[1]", r"must be an object, not \[1\]"),
        ("null", "not None"),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_no_json_object_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says) as caught:
        read_record(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_of_records_holds_a_list_or_lines_of_them(tmp_path: Path) -> None:
    path, lines = tmp_path / "a.json", tmp_path / "a.jsonl"
    path.write_text(json.dumps([{"a": 1}, {"a": 2}]))
    lines.write_text('{"a": 1}\n\n{"a": 2}')
    assert [one.number("a") for one in read_records(path)] == [1, 2]
    assert [one.number("a") for one in read_records(lines)] == [1, 2]
    for held, says in (
        ({"a": 1}, "a.json: it must be a list"),
        ([{}, 3], "a.json, record 1: it"),
    ):
        path.write_text(json.dumps(held))
        with pytest.raises(InvalidInput, match=says):
            read_records(path)


GOOD: list[tuple[str, tuple[Any, ...], Any, Any]] = [
    ("text", (), "a", "a"),
    ("text_or_number", (), 0.57, "0.57"),
    ("texts", (), ["a"], ("a",)),
    ("text_or_number", (), 2**70, str(2**70)),
    ("texts_or_numbers", (), ["a", 1], ("a", "1")),
    ("one_or_more", (), "a", ("a",)),
    ("one_or_more", (), ["a", 2], ("a", "2")),
    ("number", (), 0.5, 0.5),
    ("numbers", (2,), [1, 2.5], (1, 2.5)),
    ("index", (3,), 2, 2),
]
BAD: list[tuple[str, tuple[Any, ...], Any]] = [
    ("text", (), 1),
    ("text", (), None),
    ("text", (), ["a"]),
    ("text", (), b"a"),
    ("text", (), "\ud800"),
    ("text_or_number", (), True),
    ("text_or_number", (), {}),
    ("texts", (), "stop"),
    ("texts", (), [1]),
    ("texts", (), {"a": 1}),
    ("texts", (), None),
    ("texts_or_numbers", (), [None]),
    ("one_or_more", (), {}),
    ("one_or_more", (), []),
    ("one_or_more", (), [["a"]]),
    ("number", (), "1"),
    ("number", (), True),
    ("number", (), float("nan")),
    ("number", (), 10**400),
    ("numbers", (4,), [1, 2, 3]),
    ("numbers", (1,), "1"),
    ("index", (3,), 3),
    ("index", (3,), -1),
    ("index", (3,), 1.0),
    ("index", (3,), True),
    ("record", (), []),
    ("records", (), {}),
    ("records", (1,), []),
    ("records", (), [1]),
]


@pytest.mark.parametrize(("kind", "more", "value", "expected"), GOOD)
def test_a_field_is_read_as_what_it_is_declared(
    kind: str, more: tuple[Any, ...], value: Any, expected: Any
) -> None:
    assert getattr(Record({"x": value}, "here"), kind)("x", *more) == expected


@pytest.mark.parametrize(("kind", "more", "value"), BAD)
def test_a_field_of_another_type_is_refused_by_name(
    kind: str, more: tuple[Any, ...], value: Any
) -> None:
    with pytest.raises(InvalidInput, match=r"^here(: the field 'x' is|, field 'x', record 0: it)"):
        getattr(Record({"x": value}, "here"), kind)("x", *more)


def test_a_missing_field_is_named_with_all_its_names_and_those_that_are_there() -> None:
    record = Record({"query": 5}, "here")
    with pytest.raises(InvalidInput, match=r"no field 'question' or 'asked'.*fields: 'query'"):
        record.text("question", "asked")
    with pytest.raises(InvalidInput, match="the field 'query' is 5"):
        record.text("question", "query")
