"""Benchmarks that a language model judges: what it is asked, and what its words are worth."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from foveate.errors import InvalidInput
from foveate.eval.judge import find_judge
from foveate.eval.tasks import find_task
from tests.eval.benchmarks.conftest import Folder, samples
from tests.eval.metrics.test_answers import distance


class Echo:
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, reply: str):
        self.reply, self.prompts = reply, []  # type: ignore[var-annotated]

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.reply


@pytest.fixture
def mm_vet(folder: Folder) -> Any:
    record = {
        "imagename": "v1_0.png",
        "question": "What is x?",
        "answer": "-1<AND>-5",
        "imagesource": "",
        "capability": ["ocr", "math"],
    }
    return folder(["images/v1_0.png"], **{"mm-vet": {"v1_0": record}})


def test_without_a_judge_there_is_no_score(mm_vet: Any) -> None:
    task = find_task(f"mm_vet={mm_vet}")
    (one,) = samples(task)
    assert task.metric("x = -1", one) is None
    assert task.reference
    assert one.facts["capability"] == ("ocr", "math")


def test_mm_vet_is_graded(mm_vet: Any) -> None:
    judge = Echo(" 0.5\n")
    task = find_task(f"mm_vet={mm_vet}", judge)
    (one,) = samples(task)
    assert task.metric("x = -1", one) == 0.5
    assert judge.prompts[0].endswith("\nWhat is x? | -1 <AND> -5 | x = -1 | ")
    (mm_vet / "judge.txt").write_text("Their prompt")
    (again,) = samples(task)
    task.metric("x", again)
    assert judge.prompts[1] == "Their prompt\nWhat is x? | -1 <AND> -5 | x | "


@pytest.mark.parametrize(
    ("reply", "score"), [("1.0", 1.0), ("0", 0.0), ("0.7 as one is missing", 0.7), ("1", 1.0)]
)
def test_a_grade_is_a_number(mm_vet: Any, reply: str, score: float) -> None:
    task = find_task(f"mm_vet={mm_vet}", Echo(reply))
    assert task.metric("x", samples(task)[0]) == score


@pytest.mark.parametrize("reply", ["", "good", "1.5", "10", "7", "-1", "0.5.1"])
def test_other_words_are_no_grade(mm_vet: Any, reply: str) -> None:
    task = find_task(f"mm_vet={mm_vet}", Echo(reply))
    with pytest.raises(InvalidInput, match="number from 0 to 1"):
        task.metric("x", samples(task)[0])


def problem(**more: Any) -> dict[str, Any]:
    return {
        "question": "q",
        "image": "images/1.jpg",
        "choices": None,
        "unit": None,
        "precision": None,
        "answer": "7",
        "question_type": "free_form",
        "answer_type": "integer",
        "pid": "1",
        "metadata": {},
        **more,
    }


CHOICES = {
    "question_type": "multi_choice",
    "answer_type": "text",
    "choices": ["6cm", "7 cm", "up"],
    "answer": "7 cm",
}


@pytest.mark.parametrize(
    ("made", "said", "found", "score", "asked"),
    [
        ({}, "7", "", 1.0, False),
        ({}, "It is 7.", "7.0", 1.0, True),
        ({}, "eh", "seven", 0.0, True),
        ({"answer_type": "float", "precision": 1.0, "answer": "1.2"}, "about", "1.23", 1.0, True),
        ({"answer_type": "float", "precision": 1, "answer": "1.2"}, "1.2", "", 1.0, False),
        ({"answer_type": "list", "answer": "[1, 2]"}, "1 and 2", "[1, 2]", 1.0, True),
        (CHOICES, "7 cm", "", 1.0, False),
        (CHOICES, "I say B", "B", 1.0, True),
        (CHOICES, "I say b", "(b) 7 cm", 1.0, True),
        (CHOICES, "hm", "7cn", 0.0, True),
        (CHOICES, "hm", "A", 0.0, True),
        ({}, "", "", 0.0, False),
    ],
)
def test_mathvista_is_extracted_and_compared(
    folder: Folder, made: dict[str, Any], said: str, found: str, score: float, asked: bool
) -> None:
    path = folder(["images/1.jpg"], testmini={"1": problem(**made)}, query={"1": "Hint.\nq"})
    judge = Echo(found)
    task = find_task(f"mathvista={path}", judge)
    (one,) = samples(task)
    assert one.question == "Hint.\nq"
    assert task.metric(said, one) == score
    assert bool(judge.prompts) == asked
    if asked:
        assert "Question: Hint.\nq\n" in judge.prompts[0]
        assert said in judge.prompts[0]
    assert find_task(f"mathvista={path}").metric(said, one) is None


def test_a_choice_that_is_not_named_is_the_one_with_the_fewest_edits(folder: Folder) -> None:
    r = random.Random(0)
    for _ in range(100):
        choices = list({"".join(r.choices("abc", k=r.randint(2, 6))) for _ in range(4)})
        reply = "".join(r.choices("abcd", k=5))
        best = [distance(reply, choice) for choice in choices]
        right = choices[best.index(min(best))]
        made = problem(**{**CHOICES, "choices": choices, "answer": right})
        path = folder(["images/1.jpg"], testmini={"1": made}, query={"1": "q"})
        task = find_task(f"mathvista={path}", Echo(reply))
        assert task.metric("long words", samples(task)[0]) == 1.0


def test_mathvista_needs_every_prompt(folder: Folder) -> None:
    path = folder(["images/1.jpg"], **{"data/testmini": {"1": problem()}, "data/query": {}})
    with pytest.raises(InvalidInput, match="no prompt for '1'"):
        samples(find_task(f"mathvista={path}"))


def test_descriptions_have_a_reference(folder: Folder) -> None:
    talk = [
        {"from": "human", "value": "Describe this.\n<image>"},
        {"from": "gpt", "value": "A man in a boat."},
    ]
    record = {"id": "000000123", "image": "coco/train2017/1.jpg", "conversations": talk}
    path = folder(["coco/train2017/1.jpg"], detail_1k=[record])
    task = find_task(f"llava_description={path}")
    (one,) = samples(task)
    assert (one.question, one.answers) == ("Describe this.", ("A man in a boat.",))
    assert task.reference
    assert task.metric("A boat.", one) is None
    assert find_task(f"llava_description={path}", Echo("0.4")).metric("A boat.", one) == 0.4


def test_a_judge_is_a_callable_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(ask=Echo("1"), number=3))
    assert find_judge("mine:ask")("?") == "1"
    for name, says in [
        ("mine", "written module:callable"),
        ("mine:", "written module:callable"),
        ("nowhere.at.all:ask", "cannot be imported"),
        ("mine:tell", "no 'tell'"),
        ("mine:number", "no 'number'"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            find_judge(name)


def test_a_judge_that_says_no_text_is_refused(mm_vet: Any) -> None:
    task = find_task(f"mm_vet={mm_vet}", lambda prompt: 0.5)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match="replied with float"):
        task.metric("x", samples(task)[0])
