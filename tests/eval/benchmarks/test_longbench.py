"""LongBench's files, as prompts and scores."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.longbench import SETS
from foveate_lab.eval.tasks import find_task, find_tasks
from tests.eval.benchmarks.conftest import Folder, samples


def record(answers: list[str], **more: Any) -> dict[str, Any]:
    return {
        "input": "Who {asks}?",
        "context": "Long {text}.",
        "answers": answers,
        "length": 9,
        "dataset": "x",
        "language": "en",
        "all_classes": None,
        "_id": "7f",
        **more,
    }


@pytest.mark.parametrize("beside", ["", "config/"])
def test_a_prompt_is_the_authors_with_context_and_input(folder: Folder, beside: str) -> None:
    prompts = {"qasper": "Read.\n\n{context}\n\nNow: {input}\nAnswer:"}
    path = folder(
        [],
        **{
            "data/qasper.jsonl": [record(["The red cat", "none"])] * 2,
            f"{beside}dataset2prompt": prompts,
        },
    )
    task = find_task(f"longbench_qasper={path}")
    one, _ = samples(task)
    assert one.text == "Read.\n\nLong {text}.\n\nNow: Who {asks}?\nAnswer:"
    assert one.question == "\n\nNow: Who {asks}?\nAnswer:"
    assert not one.plain
    assert task.metric("a cat\nnone", one) == pytest.approx(2 / 3)  # of the better answer
    assert task.longest == 128


def test_six_sets_are_plain_and_four_end_with_the_first_line(folder: Folder) -> None:
    prompts = {"trec": "{context}\n{input}", "lcc": "{context}Next line of code:\n"}
    classes = ["City", "Date"]
    path = folder(
        [],
        **{
            "trec.jsonl": [record(["City"], all_classes=classes)],
            "lcc.jsonl": [record(["return x"])],
            "dataset2prompt": prompts,
        },
    )
    trec, lcc = (find_task(f"longbench_{name}={path}") for name in ("trec", "lcc"))
    (kind,), (code,) = samples(trec), samples(lcc)
    assert kind.plain
    assert code.plain
    assert [trec.metric(said, kind) for said in ("\nCity\nDate", "City Date")] == [1.0, 0.5]
    assert lcc.metric("# then\nreturn x\nx = 1", code) == 1.0
    assert code.question == "Next line of code:\n"


def test_there_are_21_sets_and_what_is_missing_is_named(folder: Folder) -> None:
    path = folder([], dataset2prompt={"trec": "no context"})
    assert len(find_tasks(f"longbench={path}")) == len(SETS) == 21
    with pytest.raises(InvalidInput, match=r"no prompt with \{context\} for 'qasper'"):
        samples(find_task(f"longbench_qasper={path}"))
    path = folder([], dataset2prompt={"trec": "{context}"})
    with pytest.raises(InvalidInput, match=r"holds no LongBench trec: there is"):
        samples(find_task(f"longbench_trec={path}"))
    (path / "trec.jsonl").write_text('{"input": ')
    with pytest.raises(InvalidInput, match=r"trec.jsonl, line 1: no JSON"):
        samples(find_task(f"longbench_trec={path}"))
