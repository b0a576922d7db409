"""The leaderboard has every method, or says why not, and a picture for light and dark pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import foveate
from foveate.pictures.strips import PALETTE

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))
try:
    import leaderboard
finally:
    sys.path.pop(0)
BOARDS = leaderboard.boards()


@pytest.mark.parametrize("protocol", ["query-aware", "query-agnostic"])
def test_every_method_has_a_row_or_a_reason(protocol: str) -> None:
    rows = BOARDS[protocol]["methods"]
    said = " ".join(leaderboard.name(row["method"]) for row in rows)
    named = {*re.findall(r"\w+", said), *leaderboard.NOT_ASKED, *leaderboard.not_measured()}
    assert set(foveate.METHODS) <= named
    for row in rows:
        assert {*row["cells"], *row["refused"]} == set(BOARDS[protocol]["tasks"]), row["method"]
        assert not set(row["cells"]) & set(row["refused"])


@pytest.mark.parametrize("protocol", ["query-aware", "query-agnostic"])
def test_rows_are_sorted_and_the_best_of_each_budget_is_behind_nobody(protocol: str) -> None:
    board = BOARDS[protocol]
    means = [leaderboard.mean(row) for row in leaderboard.ranked(board)]
    assert means == sorted(means, reverse=True)
    for budget in board["tasks"]:
        cells = [
            row["cells"][budget] for row in leaderboard.methods(board) if budget in row["cells"]
        ]
        best = max(cell["right"][0] for cell in cells)
        assert max(cell["behind"][0] for cell in cells) == 0
        assert all(
            cell["behind"][0] == pytest.approx(cell["right"][0] - best, abs=1e-3) for cell in cells
        )


def test_the_picture_has_colors_for_light_and_dark_alone() -> None:
    drawn = (ROOT / "docs" / "quality.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert set(re.findall(r"#[0-9a-f]{6}", drawn)) <= {*PALETTE}
    assert "currentColor" not in drawn  # which is black in a picture of its own
