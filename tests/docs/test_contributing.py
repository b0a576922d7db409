"""CONTRIBUTING.md's new method, added word for word to a copy of the repository, passes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Add a method: one file, one line\n")[2].partition("\n## ")[0]
FILE, INIT, CHANGELOG = re.findall(
    r"(?<=\n```)(?:python|markdown)\n(.*?)```\n", SECTION, re.DOTALL
)[:3]
PLACE = re.search(r"First, the file,\s+`(.*?)`", SECTION)[1]
COPIED = ("src", "tests", "docs", "demo_model", "benchmarks", "examples")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What is checked of the repository, without what was generated."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist", "runs", ".*")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    for file in (*ROOT.glob("*.*"), ROOT / "Makefile", ROOT / "LICENSE"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    for hidden in (".ci", ".github"):
        shutil.copytree(ROOT / hidden, tmp_path / hidden)
    return tmp_path


def run(root: Path, *command: str) -> str:
    """A tool of this environment, on the copy."""
    path = os.pathsep.join([str(root / "src"), str(root / "demo_model")])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"{' '.join(command)}\n{done.stdout[-8000:]}{done.stderr[-4000:]}"
    return done.stdout


def edit(root: Path) -> None:
    """What the page says: the file, the line, the changelog."""
    (root / PLACE).write_text(FILE, encoding="utf-8")
    methods = root / "src/foveate/methods/__init__.py"
    lines = methods.read_text(encoding="utf-8").splitlines(keepends=True)
    after = next(
        i for i, line in enumerate(lines) if line > INIT and "# isort" not in line and i > 9
    )
    methods.write_text("".join([*lines[:after], INIT, *lines[after:]]), encoding="utf-8")
    changes = root / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    changes.write_text(
        text.replace("### Added\n\n", f"### Added\n\n{CHANGELOG}", 1), encoding="utf-8"
    )


def tables(root: Path) -> None:
    """`make tables`, whose commands stand in the Makefile."""
    recipe = (root / "Makefile").read_text(encoding="utf-8").partition("\ntables:")[2]
    commands = re.findall(r"^\t\$\(BIN\)/python (.*)", recipe.partition("\n\n")[0], re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        run(root, *command.split())


@pytest.mark.slow
def test_a_method_is_one_file_and_one_line(copy: Path) -> None:
    edit(copy)
    tables(copy)
    assert "one in so many of them" in (copy / "docs/methods.md").read_text(encoding="utf-8")
    run(copy, "-m", "ruff", "format", "--check", "src")
    run(copy, "-m", "ruff", "check", "src")
    run(copy, "-m", "mypy", "src", "demo_model/foveate_demo", "benchmarks")
    run(copy, "-c", "from importlinter.cli import lint_imports_command as lint; lint()")
    tested = [f"tests/{folder}" for folder in ("core", "docs", "surface", "cli")]
    run(copy, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *tested)


def test_the_page_names_files_that_are_there() -> None:
    assert (ROOT / PLACE).parent.is_dir()
    assert compile(FILE, PLACE, "exec")
    assert INIT.startswith("from foveate.methods.")
