# ruff: noqa: SIM905
"""VQA accuracy against the script's steps with its table written out."""

from __future__ import annotations

import random
import re

import pytest

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics.vqa import normalised, vqa_accuracy
from tests.eval.metrics.conftest import Texts

TABLE = dict(
    pair.split("=")
    for pair in """
aint=ain't arent=aren't cant=can't couldve=could've couldnt=couldn't couldn'tve=couldn't've
couldnt've=couldn't've didnt=didn't doesnt=doesn't dont=don't hadnt=hadn't hadnt've=hadn't've
hadn'tve=hadn't've hasnt=hasn't havent=haven't hed=he'd hed've=he'd've he'dve=he'd've hes=he's
howd=how'd howll=how'll hows=how's isnt=isn't itd=it'd itd've=it'd've it'dve=it'd've itll=it'll
let's=let's maam=ma'am mightnt=mightn't mightnt've=mightn't've mightn'tve=mightn't've
mightve=might've mustnt=mustn't mustve=must've neednt=needn't notve=not've oclock=o'clock
oughtnt=oughtn't ow's'at='ow's'at 'ows'at='ow's'at 'ow'sat='ow's'at shant=shan't shed've=she'd've
she'dve=she'd've she's=she's shouldve=should've shouldnt=shouldn't shouldnt've=shouldn't've
shouldn'tve=shouldn't've somebody'd=somebodyd somebodyd've=somebody'd've
somebody'dve=somebody'd've somebodyll=somebody'll somebodys=somebody's someoned=someone'd
someoned've=someone'd've someone'dve=someone'd've someonell=someone'll someones=someone's
somethingd=something'd somethingd've=something'd've something'dve=something'd've
somethingll=something'll thats=that's thered=there'd thered've=there'd've there'dve=there'd've
therere=there're theres=there's theyd=they'd theyd've=they'd've they'dve=they'd've theyll=they'll
theyre=they're theyve=they've twas='twas wasnt=wasn't wed've=we'd've we'dve=we'd've weve=we've
werent=weren't whatll=what'll whatre=what're whats=what's whatve=what've whens=when's whered=where'd
wheres=where's whereve=where've whod=who'd whod've=who'd've who'dve=who'd've wholl=who'll whos=who's
whove=who've whyll=why'll whyre=why're whys=why's wont=won't wouldve=would've wouldnt=wouldn't
wouldnt've=wouldn't've wouldn'tve=wouldn't've yall=y'all yall'll=y'all'll y'allll=y'all'll
yall'd've=y'all'd've y'alld've=y'all'd've y'all'dve=y'all'd've youd=you'd youd've=you'd've
you'dve=you'd've youll=you'll youre=you're youve=you've""".split()
)
DIGITS = {
    "none": "0",
    "zero": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}
MARKS = [
    ";",
    "/",
    "[",
    "]",
    '"',
    "{",
    "}",
    "(",
    ")",
    "=",
    "+",
    "\\",
    "_",
    "-",
    ">",
    "<",
    "@",
    "`",
    ",",
    "?",
    "!",
]


def without_marks(item: str, commas: str) -> str:
    out = item
    for p in MARKS:
        if (p + " " in item or " " + p in item) or re.search(commas, item):
            out = out.replace(p, "")
        else:
            out = out.replace(p, " ")
    return re.sub(r"(?!<=\d)(\.)(?!\d)", "", out, count=int(re.UNICODE))


def literal(item: str) -> str:
    item = item.lower()
    item = item.replace(",", "").replace("?", "").replace("'s", " 's")
    item = item.strip()
    item = item.replace("\n", " ").replace("\t", " ").strip()
    item = without_marks(item, r"(?<=\d)(\,)+(?=\d)")
    kept = []
    for word in item.lower().split():
        word = DIGITS.get(word, word)
        if word not in ["a", "an", "the"]:
            kept.append(word)
    return " ".join(TABLE.get(word, word) for word in kept)


def accuracy(said: str, answers: list[str]) -> float:
    """The script's table of scores, in which the prediction is looked up."""
    people = list(enumerate(literal(a) for a in answers))
    scores = {}
    for answer in {a for _, a in people}:
        each = []
        for one in people:
            others = [other for other in people if other != one]
            each.append(min(1, float(len([o for o in others if o[1] == answer])) / 3))
        scores[answer] = sum(each) / len(each)
    return scores.get(literal(said), 0.0)


def test_answers_are_normalised_as_the_script_does(texts: Texts) -> None:
    for _ in range(300):
        text = texts(6)
        assert normalised(text) == literal(text), text
    for word in [*TABLE, *TABLE.values(), *DIGITS, "shes", "lets", "i've", "ive", "." * 40]:
        assert normalised(word) == literal(word), word


def test_accuracy_is_the_scripts() -> None:
    r, seen = random.Random(1), set()
    answers = ["stop", "Stop.", "the stop", "two", "2", "dont walk", "don't walk", "1,000", "1000"]
    for _ in range(300):
        people = r.choices(answers, k=10, weights=[r.random() for _ in answers])
        said = r.choice([*answers, "else"])
        expected = accuracy(said, people)
        assert vqa_accuracy(said, Sample("0", "?", tuple(people))) == pytest.approx(expected)
        seen.add(round(expected, 2))
    assert {0.0, 0.3, 0.6, 0.9, 1.0} <= seen
