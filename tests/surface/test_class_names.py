"""One word, one meaning: a class name stands in one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import foveate

SRC = Path(foveate.__file__).parent
ALLOWED = {
    "Answer": 4,
    "Answerer": 2,
    "Asked": 5,
    "Calibration": 2,
    "Cell": 3,
    "Coded": 2,
    "Facts": 2,
    "Filled": 2,
    "Form": 2,
    "Foveate": 2,  # what lmms-eval and VLMEvalKit each look for by this name
    "Given": 2,
    "Grid": 2,
    "Held": 3,
    "Kept": 2,
    "Layout": 2,
    "Line": 3,
    "Lines": 2,
    "Place": 3,
    "Point": 2,
    "Prompt": 2,
    "Protected": 2,
    "Published": 2,
    "Row": 4,
    "Rule": 2,
    "Seen": 2,
    "Served": 2,
    "Setting": 2,
    "Share": 2,
    "Shown": 2,
    "Span": 2,
    "Step": 2,
    "Throughput": 2,
    "Told": 2,
    "Turn": 2,
    "View": 2,
    "Weights": 2,
    "Worker": 2,
}
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
