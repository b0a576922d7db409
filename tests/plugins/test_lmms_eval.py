"""``lmms-eval --model foveate``: its command line, with tasks and documents of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.core.errors import InvalidInput, InvalidParameter, InvalidSpec
from tests.plugins.alone import Said, said

SPEC = "snapkv:budget=50%,window=4"
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: question
doc_to_messages: !function functions.{messages}
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 6, temperature: 0, do_sample: false, until: []}}
process_results: !function functions.results
metric_list: [{{metric: longer, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 0}}
"""
FUNCTIONS = """\
from PIL import Image


def visual(doc):
    return [Image.open(path) for path in doc["images"]]


def two(doc):
    first, second = visual(doc)
    parts = [("image", "url", first), ("text", "text", " and "), ("image", "url", second),
             ("text", "text", doc["question"])]
    return [{"role": "user", "content": [{"type": t, name: value} for t, name, value in parts]}]


def none(doc):
    return [{"role": "user", "content": [{"type": "text", "text": doc["question"]}]}]


def results(doc, results):
    return {"longer": float(len(results[0]) > len(doc["answer"]))}
"""


@pytest.fixture(scope="module")
def model() -> Any:
    """The class; lmms-eval's own code warns while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lmms_eval.models import get_model

        return get_model("foveate")


def test_its_command_line_asks_of_several_images_and_reports_the_cache(
    directory: Path, pictures: list[Path], tmp_path: Path
) -> None:
    documents = [
        {"images": [str(pictures[i]), str(pictures[i + 1])], "question": f"What is {i}?",
         "answer": "x"}
        for i in range(2)
    ]  # fmt: skip
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "functions.py").write_text(FUNCTIONS)
    for name in ("two", "none"):
        text = TASK.format(name=name, messages=name, documents=tmp_path / "documents.jsonl")
        (tasks / f"{name}.yaml").write_text(text)
    command = [
        sys.executable, "-m", "lmms_eval", "--model", "foveate", "--tasks", "two,none",
        "--model_args", f"pretrained={directory},method='{SPEC}'", "--include_path", str(tasks),
        "--output_path", str(tmp_path / "out"), "--log_samples",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {
        "two": [said(directory, SPEC, f"user : <image> and <image>{d['question']}\nassistant : ",
                     [Path(path) for path in d["images"]]) for d in documents],
        "none": [said(directory, SPEC, f"user : {d['question']}\nassistant : ", [])
                 for d in documents],
    }  # fmt: skip
    for name, answers in expected.items():
        (path,) = (tmp_path / "out").rglob(f"*_samples_{name}.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows.sort(key=lambda row: row["doc_id"])
        assert [row["filtered_resps"] for row in rows] == [one.text for one in answers]
        assert [row["token_counts"][0] for row in rows] == [
            {"input_tokens": one.prompt_tokens, "output_tokens": one.tokens} for one in answers
        ]
    (path,) = (tmp_path / "out").rglob("*_results.json")
    results = json.loads(path.read_text())
    figures, every = results["throughput"], [*expected["two"], *expected["none"]]
    assert figures["avg_kv_ratio"] == pytest.approx(ratio(every))
    assert 0.4 < ratio(every) < 0.6
    for name, answers in expected.items():
        assert figures[f"avg_kv_ratio_{name}"] == pytest.approx(ratio(answers))
        wanted = sum(len(one.text) > 1 for one in answers) / len(answers)
        assert results["results"][name]["longer,none"] == wanted
    assert figures["avg_kv_bytes_full"] == sum(one.kv_bytes_full for one in every) / len(every)


def ratio(answers: list[Said]) -> float:
    return sum(one.kv_bytes for one in answers) / sum(one.kv_bytes_full for one in answers)


def test_a_spec_with_commas_stands_in_quotes(model: Any, directory: Path) -> None:
    method = "h2o:budget=8,recent=0.25,select=top_k(recent=2,sinks=1)"
    for quote in "'\"":
        arguments = f"pretrained={directory},method={quote}{method}{quote}"
        made = model.create_from_arg_string(arguments, {"batch_size": "1", "device": "cpu"})
        assert made.answerer.policy.spec == method
    with pytest.raises(InvalidParameter) as caught:
        model.create_from_arg_string(f"pretrained={directory},method=h2o:budget=64,recent=0.25")
    assert "method='h2o:budget=64,recent=0.25'" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"method": "full"}, InvalidParameter, "pretrained=None"),
        ({"pretrained": "x"}, InvalidParameter, "method=None"),
        ({"pretrained": "x", "method": "full", "batch_size": "4"}, InvalidParameter, "one by one"),
        ({"pretrained": "x", "method": "snapkv:budget"}, InvalidSpec, "'budget'"),
    ],
)
def test_bad_arguments_are_named(
    model: Any, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        model(**arguments)


def test_several_processes_are_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidParameter, match="one process"):
        model(pretrained="x", method="full")


class Request:
    """One document of a task that asks like this."""

    def __init__(self, content: list[dict[str, Any]], **options: Any):
        messages = [{"role": "user", "content": content}]
        self.args = ("", lambda doc: messages, options, 0, "task", "test")


@pytest.fixture(scope="module")
def answering(model: Any, directory: Path) -> Any:
    made = model(pretrained=str(directory), method="full")
    made.task_dict = {"task": {"test": [None]}}
    return made


TEXT = {"type": "text", "text": "Who?"}


def test_an_answer_is_cut_before_what_ends_it(answering: Any, directory: Path) -> None:
    whole = said(directory, "full", "user : Who?\nassistant : ", []).text
    end = whole[3:5]
    request = Request([TEXT], max_new_tokens=6, until=[end, "never"], image_aspect_ratio="pad")
    (result,) = answering.generate_until([request])
    assert result.text == whole[: whole.index(end)].strip()


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ([{"type": "video", "url": "a.mp4"}, TEXT], {}, "a message with video"),
        ([{"type": "image", "url": 3}, TEXT], {}, "an image given as int"),
        ([{"type": "text", "text": "see <image>"}], {}, "placeholder '<image>'"),
        ([TEXT], {"visual_cot": True}, "not supported: .'visual_cot'"),
    ],
)
def test_what_is_not_supported_is_refused(
    answering: Any, content: list[dict[str, Any]], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        answering.generate_until([Request(content, **options)])
    assert caught.value.__notes__ == ["In task task, document 0."]


def test_images_may_be_files(answering: Any, pictures: list[Path]) -> None:
    given = [pictures[0], pictures[1]]
    as_paths = [{"type": "image", "url": str(path)} for path in given]
    as_images = [{"type": "image", "url": Image.open(path)} for path in given]
    first, second = (
        answering.generate_until([Request([*parts, TEXT], max_new_tokens=4)])[0]
        for parts in (as_paths, as_images)
    )
    assert first == second


def test_tasks_that_do_not_generate_are_refused(model: Any, answering: Any) -> None:
    for method in (answering.loglikelihood, answering.generate_until_multi_round):
        with pytest.raises(InvalidInput, match="Choose"):
            method([])
