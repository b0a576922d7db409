"""Check of docstring openings and of names that say nothing.

    python -m tests.surface.english

Ruff checks the mood of functions' docstrings (D401). Here: no docstring opens with a bare clause,
and nothing is called by a word that could name anything.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKED = ("src", "demo_model/foveate_demo", "demo_model/foveate_reader")
BARE = re.compile(
    "(What|Which|Whether|How|Who|Where|When|Whose|Those|The same|Of|All that|As|That|Nothing"
    r"|Everything|By|So|Than|If|In|With|For|To)\b"
)
EMPTY_NAMES = {
    "ask", "asked", "asks", "given", "held", "holds", "made", "makes", "most", "one", "ones",
    "place", "places", "said", "say", "says", "shown", "tell", "tells", "told", "wanted", "whole",
}  # fmt: skip
PUBLIC_NAMES = {"Chat.say", "Stream.ask", "Chat.held", "Stream.held"}
"""Names that users know; and below, keys of specs and files, per file."""
KEYS = {
    "src/foveate/cli/profiles.py": {"places"},
    "src/foveate/compression/layer_memory.py": {"places"},
    "src/foveate/hf/layer/stats.py": {"asked", "held", "made"},
    "src/foveate/loading/checkup.py": {"said"},
    "src/foveate/memory/model.py": {"held"},
    "src/foveate/methods/kvzip.py": {"asks"},
    "src/foveate/stages/score/reconstruction.py": {"asks"},
    "src/foveate/stream/offload.py": {"most"},
    "src/foveate_lab/eval/oracle.py": {"places"},
    "src/foveate_lab/eval/tasks/pages.py": {"place"},
}


def faults(text: str, keys: set[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield the line and a sentence for every fault of a module's text."""
    tree = ast.parse(text)
    public = set(_public(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opening = BARE.match(ast.get_docstring(node) or "")
            if opening:
                yield getattr(node, "lineno", 1), f"a docstring opens with {opening[0]!r}"
        name = _bound(node)
        if name and name.strip("_") in EMPTY_NAMES - keys and node not in public:
            yield node.lineno, f"{name!r} says nothing about what it names"


def _public(tree: ast.AST) -> Iterator[ast.AST]:
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for item in owner.body:
                if f"{owner.name}.{getattr(item, 'name', '')}" in PUBLIC_NAMES:
                    yield item


def _bound(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
    return None


def main() -> int:
    """Print every fault; return how many there are, at most 1."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for folder in CHECKED
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, fault in faults(
            path.read_text(encoding="utf-8"), KEYS.get(str(path.relative_to(ROOT)), set())
        )
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
