# ruff: noqa: SIM905 - words are easier to read and to change without quotes around each
"""VQA accuracy as EvalAI computes it for TextVQA: an answer that three of ten people gave is right.

Singh et al., arXiv:1904.08920. Quirks of the script that are reproduced: at most 32 full stops are
removed, and "somebody'd" loses its apostrophe where all other words gain one.
"""

from __future__ import annotations

import re

from foveate.prompts.sample import Sample

ENOUGH = 3  # people with the same answer
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
MOST_STOPS = 32  # re.UNICODE (32), which the script passes as the count of re.sub
_COUNTED = "zero one two three four five six seven eight nine ten".split()
NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_COUNTED)}
ARTICLES = {"a", "an", "the"}
_SHORT = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
someone's something'd something'd've something'll that's there'd there'd've there're there's they'd
they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()


def _drop_apostrophe(word: str) -> list[str]:
    """Return all variants of a word with one apostrophe missing."""
    return [word[:i] + word[i + 1 :] for i, letter in enumerate(word) if letter == "'"]


SHORT = {wrong: word for word in _SHORT for wrong in _drop_apostrophe(word)}
SHORT["somebody'd"] = "somebodyd"


def vqa_accuracy(prediction: str, sample: Sample) -> float:
    """Return the agreement with people, leaving out each in turn.

    The mean of min(1, others with this answer / 3).
    """
    predicted = normalised(prediction)
    people = [normalised(answer) for answer in sample.answers]
    agree = people.count(predicted)
    # the person left out is one of those who agree, or one of the others
    scores = [min(1.0, (agree - (person == predicted)) / ENOUGH) for person in people]
    return sum(scores) / len(scores)


def normalised(answer: str) -> str:
    """Lower the case, drop punctuation and articles, write digits up to ten, fix apostrophes."""
    text = answer.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    text = without_punctuation(text.replace("\n", " ").replace("\t", " ").strip())
    kept = [word for word in (NUMBERS.get(w, w) for w in text.split()) if word not in ARTICLES]
    return " ".join(SHORT.get(word, word) for word in kept)


def without_punctuation(text: str) -> str:
    """Remove punctuation as the script does.

    A mark next to a blank is removed, others become blanks (or are removed if digits have commas).
    Full stops are removed unless a digit follows.
    """
    out, commas = text, re.search(r"\d,\d", text)
    for mark in PUNCTUATION:
        beside = f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if beside or commas else " ")
    return re.sub(r"\.(?!\d)", "", out, count=MOST_STOPS)
