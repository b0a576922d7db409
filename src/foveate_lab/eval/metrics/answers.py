"""Short answers: letter by letter, contained, by edit distance, within 5 %."""

from __future__ import annotations

import re

from foveate.errors import MissingPackage
from foveate.prompts.sample import Sample


def exact(prediction: str, sample: Sample) -> float:
    """1 if it is an answer, letter by letter, but for blanks at its ends."""
    return float(prediction.strip() in {answer.strip() for answer in sample.answers})


def contains(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in it, in any case, new lines being blanks (OCRBench)."""
    said = _on_one_line(prediction)
    return float(any(_on_one_line(answer) in said for answer in sample.answers))


def _on_one_line(text: str) -> str:
    return text.lower().strip().replace("\n", " ")


def says(prediction: str, sample: Sample) -> float:
    """1 if the words of an answer stand in it one after the other, in any case, whatever
    punctuation is around them.
    """
    words, *answers = (_words(text) for text in (prediction, *sample.answers))
    return float(any(f" {answer} " in f" {words} " for answer in answers))


def _words(text: str) -> str:
    """In lower case, one blank apart."""
    return " ".join(re.findall(r"\w+(?:[.:]\w+)*", text.lower()))


def anls(prediction: str, sample: Sample) -> float:
    """Average normalised Levenshtein similarity, with the threshold 0.5 (DocVQA): the best answer's
    1 - distance / length, in lower case with blanks squeezed; 0 below a half. Lengths are those of
    the texts as they are.
    """
    return max(anls_to(prediction, answer) for answer in sample.answers)


def anls_to(prediction: str, answer: str) -> float:
    """The same for one answer.

    Raises:
        MissingPackage: rapidfuzz is not installed.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise MissingPackage("ANLS", "rapidfuzz", "eval") from error
    said, right = (" ".join(text.strip().lower().split()) for text in (prediction, answer))
    length = max(len(prediction), len(answer))
    similarity = 1 - Levenshtein.distance(said, right) / length if length else 1.0
    return similarity if similarity >= 0.5 else 0.0


def relaxed(prediction: str, sample: Sample) -> float:
    """Relaxed accuracy (ChartQA): a number counts up to 5 % off, a text in any case."""
    return max(relaxed_to(prediction.strip(), answer.strip()) for answer in sample.answers)


def relaxed_to(prediction: str, answer: str) -> float:
    """The same for one answer. A right answer of zero is compared as a text."""
    said, right = _number(prediction), _number(answer)
    if said is not None and right:
        return float(abs(said - right) <= 0.05 * abs(right))
    return float(prediction.lower() == answer.lower())


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
