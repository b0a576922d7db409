"""Writes the tables that derive from the registry into the README; ``--check`` only compares.

python docs/tables.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import foveate

README = Path(__file__).parent.parent / "README.md"


def methods() -> str:
    """One row a method: how it is written, what it keeps, where it comes from."""
    rows = ["| method | what it does | paper |", "|---|---|---|"]
    for name, method in foveate.METHODS.items():
        paper = method.paper
        where = (
            f"https://arxiv.org/abs/{paper.arxiv}"
            if paper and paper.arxiv
            else paper and paper.code
        )
        source = f"[{paper.title}]({where}), {paper.year}" if paper else ""
        rows.append(f"| `{name}` | {method.summary} | {source} |")
    return "\n".join(rows)


def written(text: str) -> str:
    """The text with the table between its markers made anew."""
    before, rest = text.split("<!-- methods -->")
    _, after = rest.split("<!-- /methods -->")
    return f"{before}<!-- methods -->\n{methods()}\n<!-- /methods -->{after}"


def main() -> int:
    """Rewrites the README, or says that it is out of date."""
    text = README.read_text(encoding="utf-8")
    if written(text) == text:
        return 0
    if "--check" in sys.argv:
        print("README.md is out of date: run python docs/tables.py")
        return 1
    README.write_text(written(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
