"""One word, one meaning: words that stood for everything name nothing more, and those that
CONTRIBUTING.md lists are there.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import foveate

SRC = Path(foveate.__file__).parents[1]
CONTRIBUTING = SRC.parent / "CONTRIBUTING.md"
ALLOWED = {
    "again": 5,  # the method that the protocol ReadsAgain asks of scores
    "asked": 1,  # Stats.asked
    "borrow": 0,
    "borrowed": 0,
    "found": 4,  # of PrefixBudget, a parameter of vLLM's scheduler, 2 in the lab
    "late": 0,
    "lend": 0,
    "told": 0,
}
"""How many things in the source still have such a name. It only ever gets less: say what the thing
is (the glossary has the field's words), and lower the number.
"""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound(node: ast.AST) -> str | None:
    """The name that a node gives to something: a variable, a parameter, an attribute or its own."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) | ast.alias(asname=str(name)):
            return name
    return node.name if isinstance(node, FUNCTIONS) else None


@cache
def names() -> Counter[str]:
    """How often each name is given in the source; files and folders are named, too."""
    count: Counter[str] = Counter()
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        count.update(name for node in ast.walk(tree) if (name := bound(node)) is not None)
        count[path.parent.name if path.name == "__init__.py" else path.stem] += 1
    return count


def in_code() -> Iterator[tuple[str, str]]:
    """Each word of CONTRIBUTING.md's list, with a name that it has in code."""
    section = CONTRIBUTING.read_text(encoding="utf-8").split("\n## Words in code\n")[1]
    for line in re.findall(r"^\| (?!word |---)(.+) \|$", section, flags=re.M):
        word, identifiers, _ = line.split(" | ")
        yield from ((word, name) for name in re.findall(r"`(\w+)`", identifiers))


@pytest.mark.parametrize("name", ALLOWED)
def test_a_word_for_everything_names_no_more_than_it_did(name: str) -> None:
    assert names()[name] == ALLOWED[name], "fewer: lower the number; more: say what the thing is"


def test_the_listed_words_in_code_are_names() -> None:
    words = list(in_code())
    assert len(words) > 20
    assert [(word, name) for word, name in words if not names()[name]] == []
    twice = {name for name, times in Counter(name for _, name in words).items() if times > 1}
    assert not twice, f"one word, one meaning: {twice}"
