"""What pages say that commands print is what they print, in 80 columns; times apart."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from foveate.cli.app import commands

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))
try:
    import printed
finally:
    sys.path.pop(0)

SHOWN = {page.name: printed.examples(page) for page in printed.PAGES}
SEEN = {"run", "eval", "report", "lens", "calibrate", "bench", "serve", "reproduce", "doctor"}


def test_all_that_finds_something_is_shown() -> None:
    names = {command.split()[1] for found in SHOWN.values() for command, _ in found}
    assert names == SEEN
    assert set(commands()) >= SEEN


@pytest.mark.parametrize(("command", "said"), [each for found in SHOWN.values() for each in found])
def test_it_fits_and_its_end_says_what_comes_next(command: str, said: str) -> None:
    lines = said.splitlines()
    assert "…" not in said
    name = shlex.split(command)[1]
    if name != "serve":  # whose one line is for a shell
        assert max(map(len, lines)) <= printed.COLUMNS
        assert any("foveate " in line or "browser" in line for line in lines[-3:])


def test_times_are_not_compared_and_answers_are() -> None:
    one = "on AMD EPYC (AVX2) with 2 threads: 5.4 s\nVienna 10%\n"
    assert printed.stable("foveate run", one) == printed.stable(
        "foveate run", one.replace("5", "6")
    )
    assert printed.stable("foveate run", one) != printed.stable("foveate run", "Rome 10%\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", printed.PAGES, ids=lambda page: page.name)
def test_it_is_what_they_print(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(printed.COLUMNS))
    for command, said in SHOWN[page.name]:
        assert printed.stable(command, printed.printed(command)) == printed.stable(command, said)
