"""MathVista's answers: found in what is said, and brought to the form of the right one.

Lu et al., arXiv:2310.02255, evaluation/extract_answer.py and calculate_score.py. A ``problem`` has
the fields ``question_type``, ``answer_type``, ``precision`` (digits of a decimal number; None where
they are not known) and ``choices``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from foveate.errors import MissingPackage


def plain_answer(said: str, problem: Mapping[str, Any]) -> str | None:
    """The answer where nothing else was said; None where it has to be found."""
    if not said or (problem["question_type"] == "multi_choice" and said in problem["choices"]):
        return said
    kinds = {"integer": int, "float": float}
    try:
        return str(kinds[problem["answer_type"]](said))
    except (KeyError, ValueError):
        return None


def normalised(answer: str, problem: Mapping[str, Any]) -> str | None:
    """A choice's text, or a number as the right answer is written; None where it is none."""
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
    """Of the letter in parentheses, or of a letter alone; else the text with the fewest edits."""
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


def quoted(said: str, problem: Mapping[str, Any]) -> str:
    """What follows "the answer is", or the last that could be one: of choices a letter or a text,
    a list, a number; nothing where there is none.
    """
    if answer := re.search(r'The answer is "(.*)"\.', said):
        return answer[1]
    if problem["question_type"] == "multi_choice":
        letters = re.findall(r"\(([A-Za-z])\)|(?<![\w'])([A-Z])(?![\w'])", said)
        known = [a or b for a, b in letters if ord((a or b).upper()) - 65 < len(problem["choices"])]
        texts = [one for one in problem["choices"] if one and one in said]
        return known[-1].upper() if known else texts[-1] if texts else said
    pattern = r"\[[^\[\]]*\]" if problem["answer_type"] == "list" else r"-?\d+(?:\.\d+)?"
    quotes = re.findall(
        pattern, said if problem["answer_type"] == "list" else said.replace(",", "")
    )
    return quotes[-1] if quotes else ""
