"""The scripts of examples/ run, offline, and print what they say that they print."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foveate_demo import vision

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def loaded():
    """The demo model, once for all examples."""
    return vision.load()


def printed(name, loaded, tmp_path, monkeypatch, capsys):
    """What an example prints, line by line, run in this process and in an empty folder."""
    monkeypatch.setattr(vision, "load", lambda: loaded)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def run(loaded, tmp_path, monkeypatch, capsys):
    return lambda name: printed(name, loaded, tmp_path, monkeypatch, capsys)


def test_one_saved_document_answers_all_questions(run):
    saved, *answers = run("many_questions.py")
    held, full = map(float, re.fullmatch(r"saved (\S+) MiB; .* has (\S+) MiB", saved).groups())
    assert 0.2 < held / full < 0.3
    assert [line.split(": ")[1] for line in answers] == [
        "Vienna (right)",
        "tennis (right)",
        "371 (right)",
        "2 November 1964 (right)",
    ]
    assert not any(Path.cwd().iterdir())


def test_the_sweep_is_a_table_of_answers(run):
    head, *rows, end = run("sweep.py")
    assert head.split() == ["10%", "25%", "50%"]
    assert [row.split()[0] for row in rows] == ["recommended", "snapkv:window=8", "lookm"]
    right = "".join(rows).count("tennis")
    assert right >= 3
    assert end.startswith(f"{right} of 9 say tennis, which is right")


def test_the_notebook_shows_and_writes_a_lens(run):
    answer, told = run("lens_notebook.py")
    assert answer.startswith("Bruno's ")
    assert answer.endswith(("(right)", "(wrong, it is Bruno's birthday: 2 November 1964)"))
    size = Path("lens.html").stat().st_size
    assert told == f"lens.html: {size / 1e3:.0f} kB"


@pytest.mark.slow
def test_a_tenth_of_the_cache_gives_the_same_answer(run):
    _, full, less, kept, right, _ = run("compress.py")
    assert right.removeprefix("right answer").strip() == "Bruno's birthday: 2 November 1964"
    assert full.removeprefix("full cache").strip() == "Bruno's birthday: 2 November 1964"
    assert less.removeprefix("10 % of it").strip() == "Bruno's birthday: 2 November 1964"
    assert kept.split()[1:4] == ["60.0", "of", "605"]


@pytest.mark.slow
def test_methods_are_compared_at_one_budget(run):
    _, full, profiled, *others = run("compare.py")
    assert full.startswith("full ")
    assert profiled.startswith("with profile ")
    assert all(row.endswith("Bruno's city: Vienna (right)") for row in (full, profiled))
    assert len(others) == 5
    assert all(row.endswith(("(right)", "(wrong)")) for row in others)
    held = [float(re.search(r"(\S+)%", row)[1]) for row in (profiled, *others)]
    assert all(20 < each < 40 for each in held)


@pytest.mark.slow
def test_a_chat_is_compressed_at_every_turn(run):
    lines = run("several_images.py")
    turns = [re.search(r"(\S+) of (\d+) tokens held", line) for line in lines[1::2]]
    assert len(turns) == 3
    assert all(line.endswith("(right)") for line in lines[::2])
    assert all(float(turn[1]) < 0.6 * int(turn[2]) for turn in turns)


@pytest.mark.slow
def test_a_profile_spreads_the_budget_over_the_layers(run):
    head, *layers, answer = run("calibrate.py")
    assert head == "a profile of 30 layers, fitted to 2 prompts"
    kept = [int(line.split()[2]) for line in layers]
    assert len(kept) == 30
    assert min(kept) < max(kept)
    assert answer.endswith("(right)")


@pytest.mark.slow
def test_a_method_of_ones_own_is_found_once_its_package_is_installed(tmp_path):
    shutil.copytree(FOLDER / "own_method", tmp_path / "package")
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "install", *flags, "--target", tmp_path / "site"]
    subprocess.run([*pip, tmp_path / "package"], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}
    done = subprocess.run(
        [sys.executable, FOLDER / "own_method" / "use.py"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told, alone, added = done.stdout.splitlines()
    assert told.startswith("novelty: Keeps the tokens whose values")
    assert alone.startswith("novelty:budget=50% ")
    assert all(line.endswith(("(right)", "(wrong, it is Vienna)")) for line in (alone, added))
    assert added.startswith("novelty+adakv:budget=50%")


def test_the_readme_names_every_example_there_is():
    links = set(re.findall(r"\]\(([^)]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    scripts = {
        path.relative_to(FOLDER).as_posix()
        for path in FOLDER.rglob("*.*")
        if path.suffix in (".py", ".ipynb")
    }
    assert scripts - links == {"own_method/foveate_novelty/__init__.py"}
    assert all((FOLDER / link).exists() for link in links)
