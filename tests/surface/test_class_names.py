"""One word, one meaning: a class name stands in one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import foveate

SRC = Path(foveate.__file__).parents[1]
ALLOWED = {"Column": 2, "Evaluation": 2, "Foveate": 2, "Options": 2}
"""Names that still stand in so many modules. It only ever gets shorter: rename, and take out."""


def test_a_class_name_stands_in_one_module() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(path.relative_to(SRC).as_posix())
    several = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    more = {name: found for name, found in several.items() if len(found) > ALLOWED.get(name, 1)}
    assert not more, f"give the new one a name of its own: {more}"
    fewer = {name for name, count in ALLOWED.items() if len(modules[name]) < count}
    assert not fewer, f"take out of ALLOWED, or lower its number: {fewer}"
