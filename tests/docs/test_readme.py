"""What the README says, runs; what it lists, is what exists."""

import re
import sys
from pathlib import Path

import pytest

import foveate
from tests import zoo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readmes_python_runs(capsys):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(170,))
    (block,) = BLOCKS
    exec(block, {"model": model, "inputs": inputs})
    assert "34.0 of 170 tokens kept" in capsys.readouterr().out


def test_the_readme_is_read_to_its_end():
    assert len(README.encode()) < 9_000


def test_generated_tables_are_up_to_date():
    sys.path.insert(0, str(ROOT / "docs" / "scripts"))
    try:
        import tables
    finally:
        sys.path.pop(0)
    for path in (*tables.TABLES, *tables.PICTURES):
        text = path.read_text(encoding="utf-8")
        assert tables.written(path) == text, f"{path}: run python docs/scripts/tables.py"
        assert "|---|\n<!-- /" not in text, f"{path}: a table has no rows"


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_the_readmes_links_lead_somewhere(path):
    assert (ROOT / path.partition("#")[0]).exists()  # sections: docs/scripts/check_links.py


def test_the_public_api_is_all_there_and_documented():
    for name in foveate.__all__:
        assert getattr(foveate, name).__doc__, name
