"""Scores of short answers: exact, contained, by edit distance, within 5 %."""

from __future__ import annotations

import re

from foveate.errors import MissingPackage
from foveate.prompts.sample import Sample


def exact(prediction: str, sample: Sample) -> float:
    """Return 1 if the prediction equals an answer, ignoring surrounding blanks."""
    return float(prediction.strip() in {answer.strip() for answer in sample.answers})


def contains(prediction: str, sample: Sample) -> float:
    """Return 1 if the prediction contains an answer, ignoring case and line breaks (OCRBench)."""
    line = _on_one_line(prediction)
    return float(any(_on_one_line(answer) in line for answer in sample.answers))


def _on_one_line(text: str) -> str:
    return text.lower().strip().replace("\n", " ")


def has_words(prediction: str, sample: Sample) -> float:
    """Return 1 if the prediction contains an answer's words in sequence, ignoring case and
    punctuation.
    """
    words, *answers = (_words(text) for text in (prediction, *sample.answers))
    return float(any(f" {answer} " in f" {words} " for answer in answers))


def _words(text: str) -> str:
    """Return the words in lower case, joined by single blanks."""
    return " ".join(re.findall(r"\w+(?:[.:]\w+)*", text.lower()))


def anls(prediction: str, sample: Sample) -> float:
    """Return the average normalised Levenshtein similarity with threshold 0.5 (DocVQA).

    The best answer's 1 - distance / length, in lower case with blanks squeezed; 0 below a half.
    Lengths are those of the unchanged texts.
    """
    return max(anls_to(prediction, answer) for answer in sample.answers)


def anls_to(prediction: str, answer: str) -> float:
    """Return the ANLS of a prediction against one answer.

    Raises:
        MissingPackage: rapidfuzz is not installed.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise MissingPackage("ANLS", "rapidfuzz", "eval") from error
    predicted, right = (" ".join(text.strip().lower().split()) for text in (prediction, answer))
    length = max(len(prediction), len(answer))
    similarity = 1 - Levenshtein.distance(predicted, right) / length if length else 1.0
    return similarity if similarity >= 0.5 else 0.0


def relaxed(prediction: str, sample: Sample) -> float:
    """Return relaxed accuracy (ChartQA): numbers may be 5 % off, texts match in any case."""
    return max(relaxed_to(prediction.strip(), answer.strip()) for answer in sample.answers)


def relaxed_to(prediction: str, answer: str) -> float:
    """Return relaxed accuracy for one answer. An answer of zero is compared as text."""
    predicted, right = _number(prediction), _number(answer)
    if predicted is not None and right:
        return float(abs(predicted - right) <= 0.05 * abs(right))
    return float(prediction.lower() == answer.lower())


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
