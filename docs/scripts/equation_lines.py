"""Source lines of equations.

An equation is at the first comment in its symbol that names the number (`# eq. 10`), else at the
symbol itself, if the docstring names it.
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
    """Return an equation's number as it is cited: "eq. 3" or "Algorithm 1"."""
    return f"eq. {number}" if number.isdigit() else number


def located(text: str, symbol: str, number: str, title: str = "") -> int:
    """Return the line in a file's ``text`` at which a symbol names an equation.

    ``title``: the paper's name, which must precede the number.

    Raises:
        ValueError: no such symbol, or nothing in it names the number.
    """
    node = defined(text, symbol)
    for at, comment in comments(text):
        if node.lineno <= at <= (node.end_lineno or at) and number in named(comment, title):
            return below(text.splitlines(), at)
    if number in named(ast.get_docstring(node) or "", title):
        return node.lineno
    equation = f"{title} {label(number)}".strip()
    raise ValueError(f"{symbol} does not name {equation}: say so in its docstring or at the line")


def defined(text: str, symbol: str) -> Symbol:
    """Return the definition of a function or class, or with a dot that of a member."""
    body: list[ast.stmt] = ast.parse(text).body
    for part in symbol.split("."):
        inside = [node for node in body if isinstance(node, Symbol) and node.name == part]
        if not inside:
            raise ValueError(f"it has no {symbol}: put it back")
        body = inside[0].body
    return inside[0]


@cache
def comments(text: str) -> tuple[tuple[int, str], ...]:
    """Return every comment with its line number."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return tuple(
        (token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT
    )


def below(lines: list[str], at: int) -> int:
    """Return the next line with code: a comment on a line of its own is about the code below."""
    while lines[at - 1].lstrip().startswith("#"):
        at += 1
    return at


def named(text: str, title: str = "") -> set[str]:
    """Return the equations that a text names: "3", "Algorithm 1"."""
    flat = ARXIV.sub("", " ".join(text.split()))
    return {
        f"Algorithm {number}" if mention["kind"].lower() == "algorithm" else str(number)
        for mention in MENTION.finditer(flat)
        if mention["of"] == title or not title
        for number in spelled_out(mention["n"])
    }


def spelled_out(numbers: str) -> Iterator[int]:
    """Yield every number of "2 to 4" or of "1, 2 and 5"."""
    for part in re.split(r", | and ", numbers):
        first, _, last = part.partition(" to ")
        yield from range(int(first), int(last or first) + 1)
