"""A script in cells, `# %%`, run and written as a page: each cell, what it printed and showed."""

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
    """The page, in Markdown. A lens that the last line of a cell shows is saved as ``frame``, which
    the page finds under ``address``; run it where files may be left behind.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    parts: list[str] = []
    for markdown, cell in cells(script.read_text(encoding="utf-8")):
        if markdown:
            parts.append(re.sub(r"^# ?", "", cell, flags=re.MULTILINE))
            continue
        printed, shown = run(cell, names)
        parts.append(f"```python\n{cell}\n```")
        if printed:
            parts.append(f"```text\n{printed}```")
        if isinstance(shown, Lens):
            shown.save(frame)
            parts.append(f"<!-- live: {address} What the cell shows -->")
    return "\n\n".join(parts) + "\n"


def cells(text: str) -> Iterator[tuple[bool, str]]:
    """Whether it is text, and the lines of each cell."""
    _, *split = CELL.split(text)
    for markdown, cell in zip(split[::2], split[1::2], strict=True):
        yield bool(markdown), cell.strip()


def run(cell: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last line, as a notebook shows it; else None."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        shown = last and eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return printed.getvalue(), shown
