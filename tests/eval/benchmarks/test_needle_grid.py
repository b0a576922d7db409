"""A needle at every depth of every length."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.errors import InvalidInput, InvalidParameter
from foveate.loading.model import Loaded
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import Folder, samples


@pytest.fixture
def essays(folder: Folder) -> Path:
    path = folder([], needle={"needle": "Pi is 3.", "question": "What is pi?", "answer": "3"})
    (path / "a.txt").write_text("One two three. Four five six.")
    (path / "b.txt").write_text("Seven eight nine! Ten eleven twelve?")
    return path


def test_every_length_has_every_depth(essays: Path, loaded: Loaded) -> None:
    """A letter is a token of this model."""
    task = find_task(f"needle_grid(lengths=56/106,depths=0/50/100)={essays}")
    found = samples(task)
    assert [one.name for one in found] == [f"{n}/{d}" for n in (56, 106) for d in (0, 50, 100)]
    assert found[1].labels == {"length": 56, "depth": 50}
    assert task.fit is not None
    fits = [task.fit(loaded.tokenizer, one) for one in found]
    assert [one.context for one in fits[:3]] == [
        "Pi is 3. One two three. Four five six.\n\nSeven eight nine!",
        "One two three. Pi is 3. Four five six.\n\nSeven eight nine!",
        "One two three. Four five six.\n\nSeven eight nine! Pi is 3.",
    ]
    for one in fits:
        tokens = loaded.tokenizer(one.context, add_special_tokens=False)["input_ids"]
        assert abs(len(tokens) - one.labels["length"]) <= 3  # blanks around the needle
        assert one.context.count("Pi is 3.") == 1
    assert "Ten eleven twelve?One two" in fits[3].context  # the texts once more


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("3", 1),
        ("It is 3.", 1),
        ("Pi is 3", 1),
        ("33", 0),
        ("three", 0),
        ("", 0),
        ("3.1", 0),
        ("(3)", 1),
        ("3, I think", 1),
        ("not known", 0),
    ],
)
def test_scores_by_hand(essays: Path, said: str, score: int) -> None:
    task = find_task(f"needle_grid={essays}")
    assert task.metric(said, samples(task, 1)[0]) == score


def test_what_is_missing_or_no_number_is_named(essays: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"depths='0/101': give whole numbers up to 100"):
        samples(find_task(f"needle_grid(depths=0/101)={essays}"))
    for path in essays.glob("*.txt"):
        path.write_text(" ")
    with pytest.raises(InvalidInput, match=r"holds no text to hide a needle in"):
        samples(find_task(f"needle_grid={essays}"))
