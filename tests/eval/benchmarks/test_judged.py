"""Benchmarks that a language model judges: what it is asked, and what its words are worth."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from foveate.errors import InvalidInput
from foveate.prompts.sample import PLACE
from foveate_lab.eval.judge import find_judge
from foveate_lab.eval.tasks import find_task
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
    assert one.labels == {"capability": ["ocr", "math"], "abilities": "math+ocr"}
    assert one.question == f"What is x?\n{PLACE}"  # PrefixKV's order
    (first,) = samples(find_task(f"mm_vet(image=before)={mm_vet}"))
    assert first.question == "What is x?"


def test_mm_vet_is_a_list_as_well(folder: Folder) -> None:
    records = [{"image": f"v1_{i}.png", "question": f"q{i}?", "answer": "a<OR>b"} for i in range(2)]
    path = folder(["images/v1_0.png", "images/v1_1.png"], **{"mm-vet": records})
    found = samples(find_task(f"mm_vet={path}"))
    assert [(one.name, one.answers, one.labels["capability"]) for one in found] == [
        ("0", ("a<OR>b",), []),
        ("1", ("a<OR>b",), []),
    ]


def test_mm_vet_is_graded(mm_vet: Any) -> None:
    judge = Echo(" 0.5\n")
    task = find_task(f"mm_vet={mm_vet}", judge)
    (one,) = samples(task)
    assert task.metric("x = -1", one) == 0.5
    _, *table = judge.prompts[0].split("--- | --- | --- | ---\n")[1].split("\n")[::-1]
    assert len(table) >= 3  # graded examples
    assert all(0 <= float(row.split(" | ")[3]) <= 1 for row in table)
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


@pytest.mark.parametrize(
    ("made", "said", "score"),
    [
        ({}, "7", 1),
        ({}, "There are 3 and 4, so 7 in all.", 1),
        ({}, "There are 7, or 8.", 0),
        ({"answer": "1700"}, "It is 1,700.", 1),
        ({}, 'The answer is "7". I took 8.', 1),
        ({}, "seven", 0),
        ({}, "", 0),
        ({"answer_type": "float", "precision": 1, "answer": "1.2"}, "about 1.23 m", 1),
        ({"answer_type": "float", "precision": 2, "answer": "1.2"}, "about 1.23 m", 0),
        ({"answer_type": "list", "answer": "[1, 2]"}, "[0] no, [1, 2]", 1),
        (CHOICES, "The answer is (B).", 1),
        (CHOICES, "I see 6cm. So it is B", 1),
        (CHOICES, "it measures 7 cm", 1),
        (CHOICES, "It goes up", 0),
        (CHOICES, "(A) or (B)", 1),
        (CHOICES, "7 ccm", 1),  # the fewest edits
    ],
)
def test_mathvista_by_rules_needs_no_judge(
    folder: Folder, made: dict[str, Any], said: str, score: int
) -> None:
    path = folder(["images/1.jpg"], testmini={"1": problem(**made)}, query={"1": "q"})
    task = find_task(f"mathvista(extraction=rules)={path}")
    assert task.metric(said, samples(task)[0]) == score
    assert not task.unjudged
    assert find_task(f"mathvista={path}").unjudged


def test_mathvista_says_of_what_kind_a_problem_is_and_takes_the_authors_examples(
    folder: Folder,
) -> None:
    about = {"task": "geometry", "skills": ["counts", "reads"], "grade": "college", "img_width": 9}
    path = folder(
        ["images/1.jpg"], testmini={"1": problem(metadata=about)}, query={"1": "Hint.\nq"}
    )
    (path / "extract.txt").write_text("Their examples.\n")
    judge = Echo("7")
    task = find_task(f"mathvista={path}", judge)
    (one,) = samples(task)
    assert one.labels == {
        "question_type": "free_form",
        "answer_type": "integer",
        "task": "geometry",
        "grade": "college",
        "skills": ["counts", "reads"],
    }
    assert task.metric("It is 7.", one) == 1
    assert judge.prompts == ["Their examples.\n\nHint.\nq\n\nIt is 7.\n\nExtracted answer: "]


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
    assert (one.question, one.answers) == (f"Describe this.\n{PLACE}", ("A man in a boat.",))
    talk[0]["value"] = "<image>\nDescribe this."
    path = folder([], detail_1k=[record])
    assert samples(find_task(f"llava_description={path}"))[0].question == "Describe this."
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
