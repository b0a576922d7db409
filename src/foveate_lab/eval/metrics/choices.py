"""Multiple choice: extraction of the chosen letter.

The letter after the last "answer is", "option is" and the like takes precedence; then a letter that
begins the answer, alone or before a point, bracket or colon; then the last such letter anywhere.
"A" as a word is not a choice. An answer without a letter is wrong: none is guessed.
"""

from __future__ import annotations

import re

from foveate.prompts.sample import Sample

_DECLARED = re.compile(
    r"\b(?:answer|option|choice)(?:\s+is|\s*:)\s*:?\s*\W?([A-H])\b(?!')", re.IGNORECASE
)
_FIRST = re.compile(r"\W*([A-H])(?:\s*$|[).:,\]\n])", re.IGNORECASE)
_MARKED = re.compile(r"(?<![A-Za-z])([A-H])(?:\s*$|[).:\]])")


def letter(prediction: str) -> str:
    """Return the chosen letter as a capital; empty if there is none."""
    declared = _DECLARED.findall(prediction)
    first = _FIRST.match(prediction)
    marked = _MARKED.findall(prediction)
    letters = declared[-1:] or ([first[1]] if first else []) or marked[-1:]
    return str(letters[0]).upper() if letters else ""


def choice(prediction: str, sample: Sample) -> float:
    """Return 1 if the chosen letter is the answer."""
    return float(letter(prediction) == sample.answers[0])
