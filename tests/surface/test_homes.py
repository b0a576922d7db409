"""What belongs to one method stands in its file: no name of a method is written down below, and
stages are shared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import foveate

SRC = Path(foveate.__file__).parent
ONE_METHOD = ("recommended",)  # a folder whose files are one method
PARTS = sorted(
    path
    for path in (SRC / "stages").rglob("*.py")
    if path.name not in ("__init__.py", "moved.py") and "moved(" not in path.read_text("utf-8")
)
LOW = ("cache", "policies", "profiles", "compression", "hf", "vllm")
OF_USERS = {"score/kvpress.py", "score/indexer.py"}  # no method has a press, or needs an indexer
BELOW = sorted(path for folder in LOW for path in (SRC / folder).rglob("*.py"))
ENGLISH = {"full", "random", "leverage"}  # words of messages, too: looked for as a whole text only
ALLOWED = {
    # the one policy that every engine offers beside its own: a prompt that is kept whole
    ("vllm/plans/plans.py", "full"),
    ("vllm/plans/settings.py", "full"),
    ("hf/pruning/tower.py", "full"),  # transformers' word: the class token stays
    ("vllm/scheduler/scheduler.py", "full"),
    # files of its authors become a profile
    ("hf/measuring/author_files.py", "fast_kvzip"),
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
    assert not any(one.startswith("foveate.methods") for one in imports(path))


def imports(path: Path) -> Iterator[str]:
    """What a file imports, by its full name: "foveate.cache.layer.Layer"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_a_name_is_found_and_an_example_is_not() -> None:
    assert names("method == 'headkv', or sparsemm") == {"headkv", "sparsemm"}
    assert not names("such as 'snapkv:budget=20%' or foveate.snapkv(budget=0.2), at full length")
    assert names("full") == {"full"}


def home(name: str) -> str:
    """The file in `stages` that defines what is imported, which a package may hand on; else none:
    "foveate.stages.score.Recency" is in "score/attention_free.py".
    """
    module, _, symbol = name.rpartition(".")
    if not module.startswith("foveate.stages"):
        return ""
    found = getattr(import_module(module), symbol)
    place = Path(getattr(import_module(getattr(found, "__module__", module)), "__file__", ""))
    within = place.is_relative_to(SRC / "stages")
    return place.relative_to(SRC / "stages").as_posix() if within else ""


def test_stages_are_what_two_or_more_methods_share() -> None:
    used: dict[str, set[str]] = {}
    for path in (SRC / "methods").rglob("*.py"):
        parts = path.relative_to(SRC / "methods").parts
        method = parts[0] if parts[0] in ONE_METHOD else "/".join(parts)
        used.setdefault(method, set()).update(home(name) for name in imports(path))
    below = {
        path.relative_to(SRC / "stages").as_posix(): {home(name) for name in imports(path)}
        for path in PARTS
    }
    for parts in used.values():
        left = list(parts)
        while left:  # what a shared part is made of is shared, too
            more = below.get(left.pop(), set()) - parts
            parts |= more
            left += more
    for part in below:
        methods = [method for method, parts in used.items() if part in parts]
        assert (len(methods) >= 2) != (part in OF_USERS), f"{part}: {methods}"
