# ruff: noqa: SIM905
"""CIDEr against the script, line by line, with dense vectors over all n-grams."""

from __future__ import annotations

import random

import numpy as np
import pytest

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics.cider import Corpus, cider, words


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    said = text.split()
    return [tuple(said[i : i + n]) for i in range(len(said) - n + 1)]


def literal(captions: list[str], references: list[list[str]]) -> list[float]:
    """pycocoevalcap's CiderScorer for captions that are words already."""
    scores = []
    for caption, mine in zip(captions, references, strict=True):
        total = np.zeros(4)
        for reference in mine:
            for n in range(1, 5):
                grams = sorted({*ngrams(caption, n), *ngrams(reference, n)})
                weights = []
                for gram in grams:
                    images = sum(any(gram in ngrams(r, n) for r in refs) for refs in references)
                    weights.append(np.log(float(len(references))) - np.log(max(1.0, images)))
                idf = np.array(weights)
                x = np.array([ngrams(caption, n).count(g) for g in grams]) * idf
                y = np.array([ngrams(reference, n).count(g) for g in grams]) * idf
                value = np.sum(np.minimum(x, y)[x > 0] * y[x > 0])
                norm = np.linalg.norm(x) * np.linalg.norm(y)
                delta = len(ngrams(caption, 2)) - len(ngrams(reference, 2))
                total[n - 1] += (value / norm if norm else 0) * np.e ** (-(delta**2) / 72)
        scores.append(float(total.mean() / len(mine) * 10))
    return scores


def test_it_is_the_scripts() -> None:
    r = random.Random(0)
    vocabulary = "a sign says stop red the store on street two bottles of wine".split()
    checked = 0
    for _ in range(12):

        def sentence(most: int = 9) -> str:
            return " ".join(r.choices(vocabulary, k=r.randint(1, most)))

        references = [[sentence() for _ in range(r.randint(1, 5))] for _ in range(10)]
        captions = [r.choice([sentence(), r.choice(mine)]) for mine in references]
        corpus = Corpus.of(references)
        expected = literal(captions, references)
        for said, right, score in zip(captions, references, expected, strict=True):
            sample = Sample("0", "?", tuple(right), facts={"corpus": corpus})
            assert cider(said, sample) == pytest.approx(score, abs=1e-9)
            checked += score > 0.1
    assert checked > 60


def test_the_only_reference_again_is_ten_and_nothing_is_nought() -> None:
    corpus = Corpus.of([["a red stop sign"], ["two bottles of wine"], ["the street"]])
    assert corpus.score("A red stop sign.", ["a red stop sign"]) == pytest.approx(10)
    assert corpus.score("", ["a red stop sign"]) == 0
    assert Corpus.of([["a red stop sign"]]).score("a red stop sign", ["a red stop sign"]) == 0


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A sign that says 'Don't walk'.", "a sign that says do n't walk"),
        ("It's John's book, isn't it?", "it 's john 's book is n't it"),
        ("Price: $4.50 (close-up)", "price $ 4.50 -lrb- close-up -rrb-"),
        (
            "A bottle of Dr. Pepper... in the U.S.A. team.",
            "a bottle of dr. pepper in the u.s.a. team",
        ),
        ("the players' 5th 7-up, 5.1-inch", "the players 5th 7-up 5.1-inch"),
        ("cannot; gonna be John O'Brien at Macy's", "can not gon na be john o'brien at macy 's"),
        ("at 10:30, 1,000 people & co", "at 10:30 1,000 people & co"),
    ],
)
def test_captions_are_cut_as_stanfords_program_cuts_them(caption: str, expected: str) -> None:
    """What is expected is what the program says of these captions."""
    assert words(caption) == expected.split()
