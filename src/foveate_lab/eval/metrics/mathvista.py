"""MathVista's answers: extraction and normalisation.

Lu et al., arXiv:2310.02255, evaluation/extract_answer.py and calculate_score.py. A ``problem`` has
the fields ``question_type``, ``answer_type``, ``precision`` (digits of a decimal number; None if
unknown) and ``choices``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from foveate.errors import MissingPackage


def plain_answer(prediction: str, problem: Mapping[str, Any]) -> str | None:
    """Return a prediction that is only an answer; None if the answer must be extracted."""
    if not prediction or (
        problem["question_type"] == "multi_choice" and prediction in problem["choices"]
    ):
        return prediction
    kinds = {"integer": int, "float": float}
    try:
        return str(kinds[problem["answer_type"]](prediction))
    except (KeyError, ValueError):
        return None


def normalised(answer: str, problem: Mapping[str, Any]) -> str | None:
    """Return a choice's text, or a number formatted like the right answer; None if it is none."""
    if problem["question_type"] == "multi_choice":
        return _choice(answer.strip(), problem["choices"])
    try:
        if problem["answer_type"] == "integer":
            return str(int(float(answer)))
        if problem["answer_type"] == "float" and problem["precision"] is None:
            return str(float(answer))
        if problem["answer_type"] == "float":
            return str(round(float(answer), int(problem["precision"])))
    except (ValueError, OverflowError):
        return None
    return answer


def _choice(answer: str, choices: Sequence[str]) -> str:
    """Return the choice of a letter, bare or in parentheses; else that with the fewest edits."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise MissingPackage("MathVista", "rapidfuzz", "eval") from error
    if letter := re.search(r"\(([a-zA-Z])\)", answer):
        answer = letter[1].upper()
    letters = [chr(ord("A") + i) for i in range(len(choices))]
    if answer in letters:
        return choices[letters.index(answer)]
    return min(choices, key=lambda choice: Levenshtein.distance(answer, choice))


def quoted(prediction: str, problem: Mapping[str, Any]) -> str:
    """Extract an answer after "the answer is", or the last candidate; empty if there is none.

    Candidates are a choice's letter or text, a list, or a number, by the problem's type.
    """
    if answer := re.search(r'The answer is "(.*)"\.', prediction):
        return answer[1]
    if problem["question_type"] == "multi_choice":
        letters = re.findall(r"\(([A-Za-z])\)|(?<![\w'])([A-Z])(?![\w'])", prediction)
        known = [a or b for a, b in letters if ord((a or b).upper()) - 65 < len(problem["choices"])]
        texts = [text for text in problem["choices"] if text and text in prediction]
        return known[-1].upper() if known else texts[-1] if texts else prediction
    pattern = r"\[[^\[\]]*\]" if problem["answer_type"] == "list" else r"-?\d+(?:\.\d+)?"
    quotes = re.findall(
        pattern, prediction if problem["answer_type"] == "list" else prediction.replace(",", "")
    )
    return quotes[-1] if quotes else ""
