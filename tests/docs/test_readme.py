"""What the README says, runs; what it lists, is what exists."""

import re
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import foveate
from foveate.chat import generation
from tests import zoo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readmes_python_runs(capsys, tmp_path, monkeypatch):
    compress, chat, stream = BLOCKS
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(170,))
    exec(compress, names := {"model": model, "inputs": inputs})
    assert "34.0 of 170 tokens kept" in capsys.readouterr().out
    folder = zoo.save_llava(tmp_path)
    names["model"] = AutoModelForImageTextToText.from_pretrained(folder).eval()
    names["processor"] = AutoProcessor.from_pretrained(folder, use_fast=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generation, "LONGEST", 4)
    for name in ("receipt.png", "other.png"):
        Image.linear_gradient("L").save(name)
    exec(chat, names)
    assert [message["role"] for message in names["chat"].messages] == ["user", "assistant"] * 2
    pytest.importorskip("av", reason="PyAV is not installed")
    from tests.videos import film

    film(tmp_path / "film.mp4")
    exec(f"{stream}    frames = stream.frames", names)
    assert [frame.time for frame in names["frames"]] == [0.0, 1.0, 2.0]


def test_the_readme_counts_the_families_that_are_tested():
    assert re.findall(r"on\s+(\d+)\s+model\s+families", README) == [str(len(zoo.FAMILIES))]


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
