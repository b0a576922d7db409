"""MileBench's scores: choices in free text, ROUGE-L, needles.

Song et al., arXiv:2404.18532. Quirks of its script that are reproduced: an empty answer is "C". The
first choice whose text is in the answer counts, unless the text has a character with a meaning in
regular expressions (the point of "2.5"). If no choice is named, every letter of the answer that
could be a choice counts, so that "A" is right and "a cat" is "ACA".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics.rouge import rouge_l_to
from foveate_lab.eval.metrics.vqa import without_punctuation

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")


def choice(prediction: str, sample: Sample) -> float:
    """Return 1 if the choice found in the prediction is right.

    ``facts["choices"]`` are the choices' texts; the answer is one of them.
    """
    choices = [normalised(text) for text in sample.facts["choices"]]
    texts_by_letter = {chr(ord("A") + i): text for i, text in enumerate(choices)}
    right = chr(ord("A") + choices.index(normalised(sample.answers[0])))
    return float(chosen(normalised(prediction), texts_by_letter) == right)


def chosen(prediction: str, choices: Mapping[str, str]) -> str:
    """Return the chosen letter; several or none if it is unclear."""
    if not prediction:
        return "C"
    letters = [normalised(f"{letter} {text}") for letter, text in choices.items()]
    if (match := _first(letters, prediction)) is not None:
        return match[0].upper() if match else prediction
    texts = {letter: normalised(text).replace(" ", "") for letter, text in choices.items()}
    match = _first(list(texts.values()), prediction.replace(" ", ""))
    for letter, text in texts.items():
        if match == text and not _SPECIAL.search(text):
            return letter.upper()
    return "".join(letter.upper() for letter in prediction if letter.upper() in choices)


def _first(texts: Sequence[str], prediction: str) -> str | None:
    """Return the text that occurs first; for equal positions, the first of ``texts``."""
    match = re.search("|".join(map(re.escape, texts)), prediction)
    return match[0] if match else None


def described(prediction: str, sample: Sample) -> float:
    """Return ROUGE-L of open answers; 0 for an empty one."""
    return rouge_l_to(normalised(prediction), normalised(sample.answers[0]))


def needle(prediction: str, sample: Sample) -> float:
    """Return 1 if the needle is one of the words."""
    return float(normalised(sample.answers[0]) in normalised(prediction).split())


def within(prediction: str, sample: Sample) -> float:
    """Return 1 if the prediction contains the answer (MMCoQA)."""
    return float(normalised(sample.answers[0]) in normalised(prediction))


def normalised(text: str) -> str:
    """Return the text in lower case, on one line, without punctuation and outer quotes."""
    out = without_punctuation(text.replace("\n", " ").replace("\t", " ").strip())
    return out.strip("'").strip('"').strip().lower()
