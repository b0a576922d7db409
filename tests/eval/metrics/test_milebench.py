"""MileBench's scores against its script, step by step."""

from __future__ import annotations

import random
import re

import pytest
from rouge import Rouge

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics.milebench import choice, described, needle, within
from tests.eval.metrics.conftest import Texts
from tests.eval.metrics.test_vqa import without_marks

SPECIAL = ["\\", ".", "^", "$", "*", "+", "?", "{", "}", "[", "]", "|", "(", ")"]


def process(answer: str) -> str:
    answer = answer.replace("\n", " ").replace("\t", " ").strip()
    out = without_marks(answer, r"(\d)(\,)(\d)")
    return out.strip("'").strip('"').strip().lower()


def match(text: str, option: dict[str, str]) -> str:
    def prepared(one: str) -> str:
        one = process(one)
        for char in SPECIAL:
            one = one.replace(char, "\\" + char)
        return one

    if text == "":
        return "C"
    try:
        found = re.search(
            "(" + "|".join(prepared(f"{k} {v}") for k, v in option.items()) + ")", text, re.S
        )
        if found:
            return found.group(0)[0].upper()
        bare = {k: prepared(v).replace(" ", "") for k, v in option.items()}
        found = re.search("(" + "|".join(bare.values()) + ")", text.replace(" ", ""), re.S)
        if found:
            for k, v in bare.items():
                if found[0].strip() == v:
                    return k.upper()
        if len(text) == 1 and text.upper() in option:
            return text.upper()
    except IndexError:
        return text
    return "".join(i.upper() for i in text if i.upper() in option)


def judged(said: str, right: str, choices: list[str]) -> float:
    texts = [process(one) for one in choices]
    option = {chr(65 + i): one for i, one in enumerate(texts)}
    return float(match(process(said), option) == chr(65 + texts.index(process(right))))


def test_choices_are_found_as_the_script_finds_them(texts: Texts) -> None:
    r, right_ones = random.Random(2), 0
    pool = [
        "red cat",
        "a dog",
        "(left)",
        "Yes",
        "no",
        "1,000",
        "$5*2",
        "Up/down",
        "it's",
        "2.5",
        "Moving left.",
        "b",
    ]
    for _ in range(600):
        choices = r.sample(pool, r.randint(2, 5)) if r.random() < 0.9 else r.choices(pool, k=40)
        right = r.choice(choices)
        letter = chr(65 + r.randrange(len(choices)))
        said = r.choice(
            [
                "",
                letter,
                letter.lower(),
                f"{letter}.",
                f"{letter}. {r.choice(choices)}",
                f"The answer is {r.choice(choices)}.",
                r.choice(choices).upper(),
                texts(4),
                f"{letter} or {r.choice('ABC')}",
                right,
            ]
        )
        sample = Sample("0", "?", (right,), facts={"choices": choices})
        expected = judged(said, right, choices)
        assert choice(said, sample) == expected, (said, right, choices)
        right_ones += expected == 1.0
    assert 150 < right_ones < 450


@pytest.mark.parametrize(
    ("said", "right", "score"),
    [
        ("", "three", 1.0),
        ("B. two", "two", 1.0),
        ("It is two.", "two", 1.0),
        ("b", "two", 1.0),
        ("c", "two", 0.0),
        ("a cab", "one", 0.0),
        ("A", "one", 1.0),
    ],
)
def test_choices_by_hand(said: str, right: str, score: float) -> None:
    sample = Sample("0", "?", (right,), facts={"choices": ("one", "two", "three")})
    assert choice(said, sample) == score


def test_open_answers_and_needles_are_the_scripts(texts: Texts) -> None:
    package, found = Rouge(metrics=["rouge-l"]), 0
    for _ in range(300):
        said, right = texts(10), texts(3, empty=False)
        p, g = process(said), process(right)
        if not g:
            continue
        sample = Sample("0", "?", (right,))
        f = package.get_scores(p, g)[0]["rouge-l"]["f"] if p else 0
        assert described(said, sample) == pytest.approx(f, abs=1e-12)
        assert needle(said, sample) == float(g in p.split())
        assert within(said, sample) == float(g in p)
        found += g in p
    assert found > 20
