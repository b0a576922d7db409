"""Modules, names and files that pages mention exist."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "examples", "demo_model", "tests")
PAGES = sorted({path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")})
PAGES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
BELOW = (".", "src", "src/foveate", "src/foveate_lab", "tests")  # where a page's paths begin
NAME = re.compile(r"(?<![\w/.-])foveate(?:_lab|_demo)?(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<=`)[\w.*-]+/[\w./*-]*(?=`)")
EXEMPT = {
    "foveate.NAME": "stands for any name",
    "foveate.methods.dilated_window": "a method that readers write",
    "foveate.vllm.Scheduler": "needs vLLM",
    "foveate.vllm.Worker": "needs vLLM",
    "src/foveate/methods/dilated_window.py": "a method that readers write",
    "src/foveate_lab/eval/benchmarks/infovqa.py": "a benchmark that readers write",
}


@cache
def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        if find_spec(name) is not None:  # some are imported by other programs alone
            return True
    except ModuleNotFoundError:  # what stands before the last dot is no package
        pass
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def missing(path: str, page: Path) -> bool:
    """Whether a path that seems to be one of ours leads nowhere."""
    bases = [page.parent, *(ROOT / base for base in BELOW)]
    ours = path.endswith(".py") or any((base / path.partition("/")[0]).is_dir() for base in bases)
    return ours and not any(list(base.glob(path.rstrip("/"))) for base in bases)


def faults(text: str, page: Path) -> list[str]:
    """Names and paths in a page's text that are not there."""
    names = [name for name in NAME.findall(text) if name not in EXEMPT and not exists(name)]
    paths = [path for path in PATH.findall(text) if path not in EXEMPT and missing(path, page)]
    return [*names, *paths]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8"), page) == []


def test_what_was_moved_is_noticed() -> None:
    text = (
        "`core/storage/` and `hf/interface.py`, foveate.eval.metrics; `DATA/docvqa`, foveate.policy"
    )
    found = ["foveate.eval.metrics", "core/storage/", "hf/interface.py"]
    assert faults(text, ROOT / "docs" / "design.md") == found
