"""Tables of results name their origin, and cheap figures can be repeated."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.quality import board_page, repeat
from benchmarks.quality.board import FILE, TASKS_ASKED, merged

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))
import provenance  # noqa: E402


@pytest.mark.parametrize("name", provenance.ORIGINS)
def test_an_origin_names_command_versions_and_the_hash_of_its_data(name: str) -> None:
    origin = provenance.ORIGINS[name]
    text = provenance.with_origin(name, lambda: "| table |")()
    assert text.startswith("| table |\n\n<sub><code>python -m benchmarks.")
    module = origin.command.split()[2].replace(".", "/")
    assert (ROOT / f"{module}.py").exists()
    digest = hashlib.sha256((ROOT / origin.data).read_bytes()).hexdigest()
    assert digest[:12] in text
    assert "torch 2." in text
    assert "{" not in text
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/quality.md")]
    assert any(f"<!-- {name} -->" in page for page in pages)


def test_a_repeated_figure_that_is_another_is_named() -> None:
    stored = json.loads(FILE.read_text())
    found = {"asked": {repeat.PROTOCOL: {}}}
    for task in TASKS_ASKED:
        cells = stored["asked"][repeat.PROTOCOL][task]
        found["asked"][repeat.PROTOCOL][task] = {m: cells[m] for m in (*repeat.METHODS, "full")}
    assert list(repeat.differences(stored, found)) == []
    other = copy.deepcopy(found)
    cell = other["asked"][repeat.PROTOCOL]["chart"]["lookm"]
    cell["bytes"][0] += 0.01
    assert [line.partition(":")[0] for line in repeat.differences(stored, other)] == [
        "chart, lookm"
    ]


def test_rows_of_another_release_are_added_with_its_name_and_continue_no_others() -> None:
    mine = json.loads(FILE.read_text())
    tasks = mine["asked"]["query-aware"]
    before = copy.deepcopy(tasks["chart"]["lookm"])
    longer = before | {"right": before["right"] + "1"}
    asked = {task: {"new": methods["lookm"]} for task, methods in copy.deepcopy(tasks).items()}
    asked["chart"]["lookm"] = longer
    theirs = {
        "made": mine["made"] | {"foveate": "9.0"},
        "machine": "a machine",
        "seconds": 1.0,
        "asked": {"query-aware": asked},
    }
    board = merged(mine, theirs, "theirs.json")
    assert board["asked"]["query-aware"]["chart"]["lookm"] == before
    assert "By foveate 9.0 on a machine: `new`." in board_page.table(tasks)
    theirs["made"]["weights"] = "others"
    with pytest.raises(SystemExit, match="made otherwise"):
        merged(mine, theirs, "theirs.json")
