"""What CONTRIBUTING.md adds, a method and a benchmark, passes, added word for word to a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = ("src", "tests", "docs", "demo_model", "benchmarks", "examples")


class Addition(NamedTuple):
    """A section of the page: the file, the line that imports it, the line of the changelog, and
    what tests want, if it is more; for a method also its paper's entry.
    """

    place: str
    file: str
    line: str
    changelog: str
    published: str = ""
    entry: str = ""


def addition(heading: str) -> Addition:
    """What a section has in its blocks."""
    section = PAGE.partition(f"## Add a {heading}: one file, one line\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?<=\n```)(?:python|markdown)\n(.*?)```\n", section, re.DOTALL)
    place = re.search(r"the file,\s+`(.*?)`", section)
    assert place
    file, line, *published, changelog = blocks[:4] if heading == "benchmark" else blocks[:3]
    entry = "".join(re.findall(r"(?<=\n```)bibtex\n(.*?)```\n", section, re.DOTALL))
    return Addition(place[1], file, line, changelog, *published or [""], entry)


METHOD, BENCHMARK = addition("method"), addition("benchmark")


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


def add(root: Path, one: Addition) -> None:
    """What the page says: the file, the line, the entry, the changelog, the tests' folders."""
    (root / one.place).write_text(one.file, encoding="utf-8")
    package = (root / one.place).parent / "__init__.py"
    lines = package.read_text(encoding="utf-8").splitlines(keepends=True)
    mine = [i for i, line in enumerate(lines) if line.startswith("from") and "# isort" not in line]
    after = next(i for i in mine if lines[i] > one.line)
    package.write_text("".join([*lines[:after], one.line, *lines[after:]]), encoding="utf-8")
    changes = root / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    changes.write_text(
        text.replace("### Added\n\n", f"### Added\n\n{one.changelog}", 1), encoding="utf-8"
    )
    if one.entry:
        references = root / "src/foveate/methods/references.bib"
        entries = [*references.read_text(encoding="utf-8").strip().split("\n\n"), one.entry.strip()]
        entries.sort(key=lambda entry: entry.partition("{")[2])
        references.write_text("\n\n".join(entries) + "\n", encoding="utf-8")
    if one.published:
        with (root / "tests/eval/benchmarks/published.py").open("a", encoding="utf-8") as file:
            file.write(f"\n\n{one.published}")


def tables(root: Path) -> None:
    """`make tables`, whose commands stand in the Makefile."""
    recipe = (root / "Makefile").read_text(encoding="utf-8").partition("\ntables:")[2]
    commands = re.findall(r"^\t\$\(BIN\)/python (.*)", recipe.partition("\n\n")[0], re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        run(root, *command.split())


def check(root: Path, *tested: str) -> None:
    """`make lint`, and some of the tests."""
    run(root, "-m", "ruff", "format", "--check", "src", "tests/eval")
    run(root, "-m", "ruff", "check", "src", "tests/eval")
    run(root, "-m", "mypy", "src", "demo_model/foveate_demo", "benchmarks")
    run(root, "-c", "from importlinter.cli import lint_imports_command as lint; lint()")
    mine = f"--ignore={Path(__file__).relative_to(ROOT)}"  # the page's blocks are added already
    run(root, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", mine, *tested)


@pytest.mark.slow
def test_a_method_is_one_file_and_one_line(copy: Path) -> None:
    add(copy, METHOD)
    tables(copy)
    assert "one in so many of them" in (copy / "docs/methods.md").read_text(encoding="utf-8")
    check(copy, "tests/core", "tests/docs", "tests/surface", "tests/cli")


@pytest.mark.slow
def test_a_benchmark_is_one_file_and_one_line(copy: Path) -> None:
    add(copy, BENCHMARK)
    tables(copy)
    page = (copy / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert "| `infovqa` | Questions about infographics, by ANLS. |" in page
    assert "InfoVQA_VAL.tsv" in page
    check(copy, "tests/eval/benchmarks", "tests/data", "tests/docs", "tests/surface")


@pytest.mark.parametrize("one", [METHOD, BENCHMARK], ids=["method", "benchmark"])
def test_the_page_names_files_that_are_there(one: Addition) -> None:
    assert (ROOT / one.place).parent.is_dir()
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--stdin-filename", one.place]
    found = subprocess.run(command, cwd=ROOT, input=one.file, capture_output=True, text=True)
    assert not found.stdout + found.stderr
    assert one.line.startswith(("from foveate.", "from foveate_lab."))


def test_the_benchmark_is_read_from_the_folders_of_the_page(tmp_path: Path) -> None:
    from foveate_lab.eval.benchmarks.folder import BENCHMARKS
    from foveate_lab.eval.tasks import find_task
    from tests.eval.benchmarks import published

    known = dict(published.FORMS)
    try:
        exec(compile(BENCHMARK.file, BENCHMARK.place, "exec"), {"__name__": "foveate.infovqa"})
        exec(BENCHMARK.published, vars(published))
        added = {key: write for key, write in published.FORMS.items() if key not in known}
        assert len(added) == 2
        for number, ((task, _), write) in enumerate(added.items()):
            first = write(published.Writes(tmp_path / str(number)))
            found = [*find_task(f"{task}={tmp_path / str(number)}").samples(9, 0)]
            read = (found[0].name, found[0].answers, len(found))
            assert read == (first.name, first.answers, first.count)
    finally:
        BENCHMARKS.pop("infovqa", None)
        published.FORMS.clear()
        published.FORMS.update(known)
