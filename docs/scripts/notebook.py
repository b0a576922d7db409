"""Pages of scripts in cells (`# %%`): each cell, with its output."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from foveate import Lens

CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?\n", flags=re.MULTILINE)


def page(script: Path, frame: Path, address: str) -> str:
    """Run a script and return its page, in Markdown.

    A lens on the last line of a cell is saved as ``frame``, which the page embeds from ``address``.
    The script may write files into the current folder.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    parts: list[str] = []
    for markdown, cell in cells(script.read_text(encoding="utf-8")):
        if markdown:
            parts.append(re.sub(r"^# ?", "", cell, flags=re.MULTILINE))
            continue
        printed, value = run(cell, names)
        parts.append(f"```python\n{cell}\n```")
        if printed:
            parts.append(f"```text\n{printed}```")
        if isinstance(value, Lens):
            value.save(frame)
            parts.append(f"<!-- live: {address} What the cell shows -->")
    return "\n\n".join(parts) + "\n"


def cells(text: str) -> Iterator[tuple[bool, str]]:
    """Yield each cell: whether it is Markdown, and its lines."""
    _, *split = CELL.split(text)
    for markdown, cell in zip(split[::2], split[1::2], strict=True):
        yield bool(markdown), cell.strip()


def run(cell: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell; return its output and the value of its last line, None for a statement."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return printed.getvalue(), value
