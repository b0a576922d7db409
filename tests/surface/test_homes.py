"""What belongs to one method stands in its file: no name of a method is written down below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import foveate

SRC = Path(foveate.__file__).parent
BELOW = sorted(path for folder in ("core", "backends") for path in (SRC / folder).rglob("*.py"))
ENGLISH = {"full", "random", "leverage"}  # words of messages, too: looked for as a whole text only
ALLOWED = {
    # the one policy that every engine offers beside its own: a prompt that is kept whole
    ("backends/vllm/plans.py", "full"),
    ("backends/vllm/settings.py", "full"),
}


def texts(path: Path) -> Iterator[str]:
    """All that stands in quotes but docstrings, in which methods may be examples."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def names(text: str) -> set[str]:
    """The methods that a text names; not those of whole specs and calls, which are examples."""
    words = set(re.findall(r"\w+(?![\w:(])", text)) & set(foveate.METHODS)
    return {word for word in words if word not in ENGLISH or word == text}


@pytest.mark.parametrize("path", BELOW, ids=lambda path: path.relative_to(SRC).as_posix())
def test_core_and_backends_name_no_method(path: Path) -> None:
    place = path.relative_to(SRC).as_posix()
    found = {(place, name) for text in texts(path) for name in names(text)}
    assert found <= ALLOWED
    assert "foveate.methods" not in {*imports(path)}


def imports(path: Path) -> Iterator[str]:
    """The packages of Foveate that a file imports from: "foveate.core" and so on."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (".".join(module.split(".")[:2]) for module in modules)


def test_a_name_is_found_and_an_example_is_not() -> None:
    assert names("method == 'headkv', or sparsemm") == {"headkv", "sparsemm"}
    assert not names("such as 'snapkv:budget=20%' or foveate.snapkv(budget=0.2), at full length")
    assert names("full") == {"full"}
