"""The picture of the packages is drawn from the code; test_readme.py compares it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def house() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs" / "scripts"))
    try:
        import house

        yield house
    finally:
        sys.path.pop(0)


def test_no_package_imports_one_that_is_not_on_a_floor_below(house: ModuleType) -> None:
    assert house.picture().count(f'fill="{house.BLUE}"/>') > 100
    assert house.RED not in house.picture()


def test_a_circle_is_named(house: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not house.circle()
    ring = {"foveate.a": frozenset({"foveate.b"}), "foveate.b": frozenset({"foveate.a"})}
    monkeypatch.setattr(house, "imports", lambda: ring)
    assert {*house.circle()} == {*ring}


def test_code_is_counted_without_blank_lines_comments_and_docstrings(house: ModuleType) -> None:
    text = (
        '"""Module.\n\nText."""\n\nimport os  # why\n\n# what\ndef f():\n    """Doc."""\n    "x"\n'
    )
    assert house.code_lines(text) == 3


def test_contributing_lists_every_package_from_the_top_down(house: ModuleType) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Where things go\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^    (\w+)  +\S", section, re.MULTILINE)
    floors = house.floors()
    order = [row for name in ("foveate", "foveate_lab") for row in floors[name]]
    assert listed == [package.rpartition(".")[2] for row in order for package in row]
