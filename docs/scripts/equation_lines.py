"""Finds the line that an equation stands at: that of the first comment in its symbol that names the
number (`# eq. 10`), else that of the symbol, whose docstring names it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

MENTION = re.compile(
    r"(?:(?P<of>[\w-]+) )?\b(?P<kind>eqs?\.|algorithm) (?P<n>\d+(?:(?:, | and | to )\d+)*)",
    flags=re.IGNORECASE,
)
ARXIV = re.compile(r" \(arXiv:[\d.]+\),")
Symbol = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def label(number: str) -> str:
    """As one writes it."""
    return f"eq. {number}" if number.isdigit() else number


def located(text: str, symbol: str, number: str, title: str = "") -> int:
    """The line in a file's ``text``; with a ``title``, it has to stand before the number.

    Raises:
        ValueError: no such symbol, or nothing in it names the number.
    """
    node = defined(text, symbol)
    for at, comment in comments(text):
        if node.lineno <= at <= (node.end_lineno or at) and number in named(comment, title):
            return below(text.splitlines(), at)
    if number in named(ast.get_docstring(node) or "", title):
        return node.lineno
    what = f"{title} {label(number)}".strip()
    raise ValueError(f"{symbol} does not name {what}: say so in its docstring or at the line")


def defined(text: str, symbol: str) -> Symbol:
    """A function, a class, or with a dot what is defined in one."""
    body: list[ast.stmt] = ast.parse(text).body
    for part in symbol.split("."):
        inside = [one for one in body if isinstance(one, Symbol) and one.name == part]
        if not inside:
            raise ValueError(f"it has no {symbol}: put it back")
        body = inside[0].body
    return inside[0]


@cache
def comments(text: str) -> tuple[tuple[int, str], ...]:
    """Every comment with its line."""
    read = tokenize.generate_tokens(io.StringIO(text).readline)
    return tuple((one.start[0], one.string) for one in read if one.type == tokenize.COMMENT)


def below(lines: list[str], at: int) -> int:
    """A comment that has its line to itself is about the code below."""
    while lines[at - 1].lstrip().startswith("#"):
        at += 1
    return at


def named(text: str, title: str = "") -> set[str]:
    """The numbers that a text names: "3", "Algorithm 1"."""
    flat = ARXIV.sub("", " ".join(text.split()))
    return {
        f"Algorithm {number}" if one["kind"].lower() == "algorithm" else str(number)
        for one in MENTION.finditer(flat)
        if one["of"] == title or not title
        for number in spelled_out(one["n"])
    }


def spelled_out(numbers: str) -> Iterator[int]:
    """All of "2 to 4", of "1, 2 and 5"."""
    for part in re.split(r", | and ", numbers):
        first, _, last = part.partition(" to ")
        yield from range(int(first), int(last or first) + 1)
