"""The notebooks of examples/ run from top to bottom on the demo model, without Jupyter."""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL.Image import Image

from foveate import Lens
from foveate_demo import vision

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def loaded():
    """The demo model, once for all notebooks."""
    return vision.load()


@pytest.fixture
def shown(loaded, tmp_path, monkeypatch, capsys, registries):
    """A function that runs a notebook; it returns what each cell prints and ends with."""
    monkeypatch.setattr(vision, "load", lambda *_, **__: loaded)
    monkeypatch.chdir(tmp_path)

    def cells(name):
        module = ModuleType(f"notebook_{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        book = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] for cell in code)  # small files, and nothing stale
        for cell in code:
            value = execute("".join(cell["source"]), vars(module))
            yield capsys.readouterr().out.splitlines(), value

    return cells


def execute(source, names):
    """Run a cell, and return the value that Jupyter would show."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return last and eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@pytest.mark.slow
def test_the_chat_answers_goes_back_and_continues_from_a_file(shown, caplog):
    (_, page), (turns, _), (back, _), (_, picture), (again, _) = shown("chat")
    assert isinstance(page, Image)
    assert turns[:2] == ["Anna's city: Lisbon", "Bruno's city: Vienna"]
    kept, seen = turns[2].split(" tokens")[0].split(" of ")
    assert int(kept) < 0.6 * int(seen)
    assert back == ["Anna's city: Lisbon", "4 messages"]
    assert isinstance(picture, Image)
    assert again == ["Nora's city: Dublin"]
    assert not caplog.records


@pytest.mark.slow
def test_the_evaluation_shows_scores_rows_and_a_question_of_ones_own(shown):
    _, (scores, _), (rows, _), (own, _) = shown("evaluation")
    specs = ["full", "recommended:budget=20%", "snapkv:budget=20%"]
    assert [line.split()[0] for line in scores] == [line.split()[0] for line in rows] == specs
    assert scores[0].split()[1] == "100%"
    assert [float(line.split()[1]) for line in rows[1:]] == [
        pytest.approx(0.2 * float(rows[0].split()[1]), abs=0.1)
    ] * 2
    assert own == [
        "full: Bruno's city: Vienna (1.0)",
        "recommended:budget=50%: Bruno's city: Vienna (1.0)",
    ]


@pytest.mark.slow
def test_the_own_method_answers_alone_and_in_a_sum(shown):
    *_, (answers, _), (_, lens) = shown("own_method")
    kept = [line.split()[0] for line in answers]
    assert kept == ["unlike:budget=50%", "unlike+adakv:budget=50%", "recommended:budget=50%"]
    assert all(line.endswith("102 of 204: Bruno's city: Vienna") for line in answers)
    assert isinstance(lens, Lens)
