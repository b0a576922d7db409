"""Multiple choice: which letter an answer names.

What follows "answer is", "option is" and the like comes first, the last of them; then a letter that
begins the answer, alone or with a point, bracket or colon behind it; then the last one that stands
so anywhere. "A" as a word is no choice, and an answer without any is wrong: no letter is guessed.
"""

from __future__ import annotations

import re

from foveate.prompts.sample import Sample

_SAID = re.compile(
    r"\b(?:answer|option|choice)(?:\s+is|\s*:)\s*:?\s*\W?([A-H])\b(?!')", re.IGNORECASE
)
_FIRST = re.compile(r"\W*([A-H])(?:\s*$|[).:,\]\n])", re.IGNORECASE)
_MARKED = re.compile(r"(?<![A-Za-z])([A-H])(?:\s*$|[).:\]])")


def letter(prediction: str) -> str:
    """The letter that is chosen, as a capital; empty where none is."""
    said = _SAID.findall(prediction)
    first = _FIRST.match(prediction)
    marked = _MARKED.findall(prediction)
    letters = said[-1:] or ([first[1]] if first else []) or marked[-1:]
    return str(letters[0]).upper() if letters else ""


def choice(prediction: str, sample: Sample) -> float:
    """1 if the letter that is chosen is the answer."""
    return float(letter(prediction) == sample.answers[0])
