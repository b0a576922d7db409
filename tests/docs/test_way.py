"""The way of a layer stays short: calls, files, hops between files, and lines of each function."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

# calls, files, hops from one file to another, and hops to a file that was seen; measured, and
# the tests leave a tenth more
FIGURES = {"prefill": (110, 23, 69, 47), "decoding step": (24, 9, 15, 7)}
LONGEST = 25  # lines of a function's body, without its docstring


@pytest.fixture(scope="module")
def way() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs" / "scripts"))
    try:
        import way

        yield way
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", FIGURES)
def test_a_layer_takes_no_more_calls_and_files_than_it_did(way: ModuleType, name: str) -> None:
    found = way.figures(way.ways()[name].layer(way.LAYERS // 2))
    most = way.Figures(*(count * 1.1 for count in FIGURES[name]))
    assert all(now <= limit for now, limit in zip(found, most, strict=True)), found


def test_no_function_on_the_way_is_long(way: ModuleType) -> None:
    codes = {call.code for each in way.ways().values() for call in each.layer(way.LAYERS // 2)}
    places = {(code.co_filename, code.co_firstlineno) for code in codes}
    lengths = {
        f"{Path(file).name}:{node.name}": _lines(node)
        for file in {file for file, _ in places}
        for node in ast.walk(ast.parse(Path(file).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and (file, _first(node)) in places
    }
    assert len(lengths) > 50
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _lines(node: ast.FunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
