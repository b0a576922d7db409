"""LooGLE's files, as prompts and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foveate.errors import InvalidInput, InvalidParameter
from foveate_lab.eval.tasks import find_task, find_tasks
from tests.eval.benchmarks.conftest import Folder, samples

QUESTIONS = [
    {"Q": "How many?", "A": "3", "S": [], "type": "computation"},
    {"Q": "In which order?", "A": "2,1,3", "S": [], "type": "timeline_reorder"},
]
CLOZE = [
    {"Q": "<mask-0> met <mask-1>.", "A": "{'<mask-0>': 'Ann Lee', '<mask-1>': 'Rome'}", "S": ""}
]
PROMPTS = {
    "longdep_qa": "Read. \n{input}\nQuestion: {Q}\nAnswer: ",
    "longdep_summarization": "Sum up. \n{input}\n Summarization: ",
    "shortdep_cloze": "Such as {{'<mask-0>': 'Bob'}}\n{input}\n Question: {Q}\nAnswer:",
}


@pytest.fixture
def loogle(folder: Folder) -> Path:
    def record(**more: Any) -> dict[str, Any]:
        return {"input": "A long {text}.", "title": "t", "output": "none", **more}

    # questions are a Python text in the authors' files, and a list if somebody made them one
    return folder(
        [],
        **{
            "LooGLE-testdata/longdep_qa.jsonl": [
                record(qa_pairs=str(QUESTIONS)),
                record(qa_pairs=QUESTIONS[:1]),
            ],
            "LooGLE-testdata/longdep_summarization.jsonl": [
                record(qa_pairs="none", output="The cat sat. It slept.")
            ],
            "LooGLE-testdata/shortdep_cloze.jsonl": [record(qa_pairs=str(CLOZE))],
            "config/task2prompt": PROMPTS,
        },
    )


def test_a_document_has_several_questions(loogle: Path) -> None:
    task = find_task(f"loogle_longdep_qa={loogle}")
    found = samples(task)
    assert [one.name for one in found] == ["0/0", "0/1", "1/0"]
    assert found[0].text == "Read. \nA long {text}.\nQuestion: How many?\nAnswer: "
    assert (found[0].plain, task.longest) == (True, 500)
    assert found[1].labels == {"type": "timeline_reorder"}
    one = find_task(
        f"loogle_longdep_qa(kind=timeline_reorder,metric=f1,chat=true,longest=32)={loogle}"
    )
    (asked,) = samples(one)
    assert (asked.question, asked.plain, one.longest) == (
        "\nQuestion: In which order?\nAnswer: ",
        False,
        32,
    )
    assert len(find_tasks(f"loogle={loogle}")) == 4


@pytest.mark.parametrize(
    ("name", "options", "said", "score"),
    [
        # of the answer's different words, how many are there in their order
        ("longdep_summarization", "", "The cat sat. It slept.", 1.0),
        ("longdep_summarization", "", "The cat slept", 3 / 5),
        ("longdep_summarization", "", "sat cat The", 1 / 5),
        ("longdep_summarization", "", "", 0.0),
        ("longdep_summarization", "", "it", 0.0),
        ("longdep_summarization", "(metric=f1)", "the cat slept", 2 * 1 * 0.5 / 1.5),
        ("longdep_qa", "", "3", 1.0),
        ("longdep_qa", "", "It is 3 of them", 1.0),
        ("longdep_qa", "(metric=f1)", "It is 3", 0.5),
        ("longdep_qa", "(metric=f1)", "four", 0.0),
        ("shortdep_cloze", "", "{'<mask-0>': 'Ann Lee', '<mask-1>': 'Rome'}", 1.0),
        ("shortdep_cloze", "", " {'<mask-0>': 'Ann Lee', '<mask-1>': 'rome'}\n", 0.5),
        ("shortdep_cloze", "", "{'<mask-0>': 'Ann'}", 0.0),
        ("shortdep_cloze", "(metric=partial)", "{'<mask-0>': 'Ann'}", 0.5),
        ("shortdep_cloze", "(metric=partial)", "{'<mask-0>': 'Bob Lee', '<mask-1>': 'Rome'}", 1.0),
        ("shortdep_cloze", "", "Ann Lee met Rome", 0.0),
        ("shortdep_cloze", "", "{'<mask-0>': ", 0.0),
        ("shortdep_cloze", "", "['Ann Lee']", 0.0),
    ],
)
def test_scores_by_hand(loogle: Path, name: str, options: str, said: str, score: float) -> None:
    task = find_task(f"loogle_{name}{options}={loogle}")
    assert task.metric(said, samples(task)[0]) == pytest.approx(score)


def test_what_is_not_as_released_is_named(loogle: Path, folder: Folder) -> None:
    with pytest.raises(
        InvalidInput, match=r"task2prompt.json: there is no prompt .* 'shortdep_qa'"
    ):
        samples(find_task(f"loogle_shortdep_qa={loogle}"))
    with pytest.raises(InvalidParameter, match=r"kind='arithmetic': give one of"):
        find_task(f"loogle_longdep_qa(kind=arithmetic)={loogle}")
    bad = {"input": "x", "output": "", "qa_pairs": "[{"}
    path = folder([], **{"LooGLE-testdata/longdep_qa.jsonl": [bad]})
    with pytest.raises(InvalidInput, match=r"line 1: the field 'qa_pairs' is no list of questions"):
        samples(find_task(f"loogle_longdep_qa={path}"))
    masks = {"input": "x", "output": "", "qa_pairs": [{"Q": "?", "A": "Rome"}]}
    path = folder([], **{"LooGLE-testdata/shortdep_cloze.jsonl": [masks]})
    with pytest.raises(InvalidInput, match=r"'A' is 'Rome'; it has to be a dictionary of masks"):
        samples(find_task(f"loogle_shortdep_cloze={path}"))


def test_a_file_without_lines_has_no_samples(loogle: Path) -> None:
    (loogle / "LooGLE-testdata/longdep_qa.jsonl").write_text("")
    assert samples(find_task(f"loogle_longdep_qa={loogle}")) == []
