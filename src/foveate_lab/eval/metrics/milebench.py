"""MileBench's scores: choices found in free text, ROUGE-L, needles.

Song et al., arXiv:2404.18532. Quirks of its script that are kept: an empty answer is "C"; the text
of a choice counts wherever it stands in the answer, and the first one found counts, unless it has
a character that means something in a regular expression (the point of "2.5"); where no choice is
named, every letter of the answer that could be one counts, so that "A" is right and "a cat" is
"ACA".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics.rouge import rouge_l_to
from foveate_lab.eval.metrics.vqa import without_punctuation

_MEANS = re.compile(r"[\\.^$*+?{}\[\]|()]")


def choice(prediction: str, sample: Sample) -> float:
    """1 if the choice that is found in the prediction is the right one; ``facts["choices"]`` are
    the choices' texts, of which the answer is one.
    """
    choices = [normalised(text) for text in sample.facts["choices"]]
    named = {chr(ord("A") + i): text for i, text in enumerate(choices)}
    right = chr(ord("A") + choices.index(normalised(sample.answers[0])))
    return float(chosen(normalised(prediction), named) == right)


def chosen(said: str, choices: Mapping[str, str]) -> str:
    """What is chosen: a letter, or where that is not clear, several or none."""
    if not said:
        return "C"
    letters = [normalised(f"{letter} {text}") for letter, text in choices.items()]
    if (match := _first(letters, said)) is not None:
        return match[0].upper() if match else said
    texts = {letter: normalised(text).replace(" ", "") for letter, text in choices.items()}
    match = _first(list(texts.values()), said.replace(" ", ""))
    for letter, text in texts.items():
        if match == text and not _MEANS.search(text):
            return letter.upper()
    return "".join(one.upper() for one in said if one.upper() in choices)


def _first(texts: Sequence[str], said: str) -> str | None:
    """The text that stands first; of those that stand there, the first."""
    match = re.search("|".join(map(re.escape, texts)), said)
    return match[0] if match else None


def described(prediction: str, sample: Sample) -> float:
    """ROUGE-L of open answers; 0 for an empty one."""
    return rouge_l_to(normalised(prediction), normalised(sample.answers[0]))


def needle(prediction: str, sample: Sample) -> float:
    """1 if the needle is one of the words."""
    return float(normalised(sample.answers[0]) in normalised(prediction).split())


def within(prediction: str, sample: Sample) -> float:
    """1 if the answer stands in the prediction (MMCoQA)."""
    return float(normalised(sample.answers[0]) in normalised(prediction))


def normalised(text: str) -> str:
    """Lower case, on one line, without punctuation and outer quotes."""
    out = without_punctuation(text.replace("\n", " ").replace("\t", " ").strip())
    return out.strip("'").strip('"').strip().lower()
