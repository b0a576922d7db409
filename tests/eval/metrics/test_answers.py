"""Metrics against what they are said to be, in other words."""

from __future__ import annotations

import random

import pytest

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics import anls, contains, exact, has_words, relaxed


def sample(*answers: str) -> Sample:
    return Sample("0", "?", answers)


def distance(a: str, b: str) -> int:
    """Levenshtein's, by the textbook."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def test_anls_is_the_best_similarity_that_reaches_a_half() -> None:
    r = random.Random(0)
    for _ in range(300):
        right = ["".join(r.choices("ab C1", k=r.randint(1, 8))) for _ in range(r.randint(1, 3))]
        said = "".join(r.choices("ab C1", k=r.randint(1, 8)))
        found = []
        for answer in right:
            p, g = (" ".join(t.lower().split()) for t in (said, answer))
            found.append(1 - distance(p, g) / max(len(said), len(answer)))
        best = max(x if x >= 0.5 else 0.0 for x in found)
        assert anls(said, sample(*right)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("said", "answer", "score"),
    [
        ("Lisbon", "lisbon", 1.0),
        ("Lisbo", "Lisbon", 5 / 6),
        ("Oslo", "Lisbon", 0.0),
        ("  a  b ", "a b", 1.0),
        ("", "a", 0.0),
    ],
)
def test_anls_by_hand(said: str, answer: str, score: float) -> None:
    assert anls(said, sample(answer)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("104", "100", True),
        ("95", "100", True),
        ("106", "100", False),
        ("-104", "-100", True),
        ("50%", "0.5", True),
        ("0.49", "50%", True),
        ("Red", "red", True),
        ("red.", "red", False),
        ("0", "0", True),
        ("0.0", "0", False),
        ("1", "0", False),
        ("about 100", "100", False),
    ],
)
def test_relaxed_accuracy_forgives_five_percent_of_a_number(
    said: str, answer: str, right: bool
) -> None:
    assert relaxed(said, sample(answer)) == float(right)
    assert relaxed(said, sample("something else", answer)) == float(right)


def test_exact_and_contains() -> None:
    assert exact(" Room: 214\n", sample("214", "Room: 214")) == 1.0
    assert exact("room: 214", sample("Room: 214")) == 0.0
    assert contains("It is ROOM 214.", sample("room 214")) == 1.0
    assert contains("It is 21 4", sample("214")) == 0.0


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("It is 360.", "360", True),
        ("1360", "360", False),
        ("36", "360", False),
        ("Mary's birthday: 26 august\n1999!", "26 August 1999", True),
        ("at 10:35.", "10:35", True),
        ("10", "10:35", False),
        ("4.50", "4", False),
        ("", "a", False),
    ],
)
def test_an_answer_is_said_word_for_word(said: str, answer: str, right: bool) -> None:
    assert has_words(said, sample(answer)) == float(right)
    assert has_words(said, sample("else", answer)) == float(right)
