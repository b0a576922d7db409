# ruff: noqa: SIM905 - words are easier to read and to change without quotes around each
"""CIDEr of captions, as pycocoevalcap computes it (CIDEr-D): n-grams weighted by rarity.

Vedantam et al., arXiv:1411.5726. The scale is the authors': 0 to 10. Published tables often use
100 for 1.

pycocoevalcap cuts captions into words with a Java program, Stanford's PTBTokenizer; :func:`words`
follows its rules for plain English captions, not all of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foveate.prompts.sample import Sample

LONGEST = 4  # words of an n-gram
SIGMA = 6.0  # of the length penalty, in words
SCALE = 10.0

Gram = tuple[str, ...]

_ABBREVIATED = (
    "mr mrs ms dr prof st ave rd blvd jr sr vs etc inc co corp ltd mt ft jan feb mar apr jun jul "
    "aug sep sept oct nov dec mon tue wed thu fri sat sun"
).split()
_WORD = r"[^\W_]+"
_TOKEN = re.compile(
    rf"(?:[a-z]\.){{2,}}|\b(?:{'|'.join(_ABBREVIATED)})\."
    rf"|{_WORD}(?:[-./'&@_]{_WORD}|(?<=\d)[:,]\d+)*|[^\s\w]|_+"
)
_PARTS = re.compile(r"(n't|'(?:s|m|d|ll|re|ve))$|(?<=^can)(not)$|(?<=^gon)(na)$")
_NO_WORDS = set("'`\".?!,:-;")
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


@dataclass(frozen=True)
class Corpus:
    """Number of images with each n-gram in a reference, and number of images."""

    images: int
    with_gram: Counter[Gram]

    @classmethod
    def of(cls, references: Iterable[Sequence[str]]) -> Corpus:
        """Count the n-grams of all images' references, given one sequence per image."""
        images, grams = 0, Counter[Gram]()
        for captions in references:
            images += 1
            grams.update({gram for caption in captions for gram in _grams(words(caption))})
        return cls(images, grams)

    def score(self, prediction: str, references: Sequence[str]) -> float:
        """Return CIDEr of one image's caption, 0 to 10."""
        grams = _grams(words(prediction))
        scores = [self._similarity(grams, _grams(words(text))) for text in references]
        return SCALE * sum(scores) / len(scores)

    def _similarity(self, predicted: Counter[Gram], right: Counter[Gram]) -> float:
        """Return the mean over n of clipped cosines, times the length penalty."""
        further = _length(predicted) - _length(right)
        penalty = math.exp(-(further**2) / (2 * SIGMA**2))
        return (
            penalty
            * sum(self._cosine(predicted, right, n) for n in range(1, LONGEST + 1))
            / LONGEST
        )

    def _cosine(self, predicted: Counter[Gram], right: Counter[Gram], n: int) -> float:
        x, y = (
            {g: c * self._rarity(g) for g, c in grams.items() if len(g) == n}
            for grams in (predicted, right)
        )
        norms = math.sqrt(sum(v**2 for v in x.values()) * sum(v**2 for v in y.values()))
        inner = sum(min(v, y[g]) * y[g] for g, v in x.items() if g in y)
        return inner / norms if norms else 0.0

    def _rarity(self, gram: Gram) -> float:
        return math.log(self.images) - math.log(max(1, self.with_gram[gram]))


def cider(prediction: str, sample: Sample) -> float:
    """Return CIDEr against the answers; ``sample.facts["corpus"]`` is the :class:`Corpus`."""
    corpus: Corpus = sample.facts["corpus"]
    return corpus.score(prediction, sample.answers)


def words(caption: str) -> list[str]:
    """Split a caption into lower-case words without punctuation: "don't" is "do" and "n't".

    Brackets stay as "-lrb-" and so on: the script drops only the upper-case forms.
    """
    tokens: list[str] = []
    for token in _TOKEN.findall(caption.lower().replace("\u2019", "'")):
        parts = [part for part in _PARTS.split(token) if part]
        tokens += [_BRACKETS.get(part, part) for part in parts if part not in _NO_WORDS]
    return tokens


def _grams(tokens: Sequence[str]) -> Counter[Gram]:
    return Counter(
        tuple(tokens[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(tokens) - n + 1)
    )


def _length(grams: Counter[Gram]) -> int:
    """Return the number of word pairs, which the script uses as the length."""
    return sum(count for gram, count in grams.items() if len(gram) == 2)
