"""What the README says, runs; what it lists, is what exists."""

import re
import sys
from pathlib import Path

import pytest
import torch

import foveate
from tests import zoo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


class Words:
    """As much of a tokenizer as a fingerprint needs."""

    @staticmethod
    def get_vocab():
        return {"a": 0}


def names(tmp_path, monkeypatch):
    """What the README's examples take as given."""
    monkeypatch.chdir(tmp_path)
    model, first = zoo.build("llava"), zoo.prompt("llava", lengths=(170,))
    policy = foveate.snapkv(budget=0.2)
    with foveate.compress(model, policy):
        answer = model.generate(**first, max_new_tokens=64)[:, 170:]
    told = zoo.append("llava", first, answer)
    return {
        "foveate": foveate,
        "model": model,
        "policy": policy,
        "inputs": first,
        "turn_1": first,
        "turn_2": zoo.extend("llava", told, new_text=50, images=1).cached,
        "questions": [zoo.extend("llava", first, new_text=5, seed=s).cached for s in (1, 2)],
        "tokenizer": None,
        "mask": first["input_ids"] == model.config.image_token_id,
        "layers": [tuple(torch.randn(1, heads, 170, 8) for heads in (4, 2, 2))],
    }


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    given = names(tmp_path, monkeypatch)
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(block, given)
    assert "34.0 of 170 tokens kept" in capsys.readouterr().out
    assert given["kept"][0].counts.tolist() == [[34, 34]]


def test_generated_tables_are_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import tables
    finally:
        sys.path.pop(0)
    for path in (*tables.TABLES, *tables.PICTURES):
        text = path.read_text(encoding="utf-8")
        assert tables.written(path) == text, f"{path}: run python docs/tables.py"


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_the_readmes_links_lead_somewhere(path):
    assert (ROOT / path.partition("#")[0]).exists()  # sections: docs/check_links.py


def test_the_public_api_is_all_there_and_documented():
    for name in foveate.__all__:
        assert getattr(foveate, name).__doc__, name
