"""``lmms-eval --model foveate``: its command line, with tasks and documents of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from foveate.data import read_video
from foveate.errors import InvalidBudget, InvalidInput, InvalidParameter, InvalidSpec
from tests.plugins.alone import Said, said
from tests.videos import film

SPEC = "snapkv:budget=50%,window=4"
BRIEF = "system : Be brief\n"
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


def film(doc):
    parts = [{"type": "video", "url": doc["film"]}, {"type": "text", "text": doc["question"]}]
    return [{"role": "user", "content": parts}]


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


def frames_of(path: Path, frames: int) -> list[Path]:
    """Files of a video's frames."""
    found = read_video(path, frames=frames).images
    paths = [path.with_name(f"frame{number}.png") for number in range(frames)]
    for image, to in zip(found, paths, strict=True):
        image.save(to)
    return paths


def test_its_command_line_asks_of_images_and_a_video_and_reports_the_cache(
    directory: Path, pictures: list[Path], tmp_path: Path
) -> None:
    clip = film(tmp_path / "film.mp4")
    documents = [
        {
            "images": [str(pictures[i]), str(pictures[i + 1])],
            "film": str(clip),
            "question": f"What is {i}?",
            "answer": "x",
        }
        for i in range(2)
    ]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "functions.py").write_text(FUNCTIONS)
    for name in ("two", "none", "film"):
        text = TASK.format(name=name, messages=name, documents=tmp_path / "documents.jsonl")
        (tasks / f"{name}.yaml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "lmms_eval",
        "--model",
        "foveate",
        "--tasks",
        "two,none,film",
        "--model_args",
        f"pretrained={directory},method='{SPEC}',frames=3",
        "--include_path",
        str(tasks),
        "--output_path",
        str(tmp_path / "out"),
        "--log_samples",
        "--system_instruction",
        "Be brief",
    ]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {
        name: [
            said(
                directory,
                SPEC,
                f"{BRIEF}user : {images}{d['question']}\nassistant : ",
                shown or [Path(path) for path in d["images"] if images],
            )
            for d in documents
        ]
        for name, images, shown in (
            ("two", "<image> and <image>", []),
            ("none", "", []),
            ("film", "<image>" * 3, frames_of(clip, 3)),
        )
    }
    for name, answers in expected.items():
        (path,) = (tmp_path / "out").rglob(f"*_samples_{name}.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows.sort(key=lambda row: row["doc_id"])
        told = [row["filtered_resps"] for row in rows]
        assert all(one.is_said(text) for one, text in zip(answers, told, strict=True))
        assert [row["token_counts"][0] for row in rows] == [
            {"input_tokens": one.prompt_tokens, "output_tokens": one.tokens} for one in answers
        ]
    (path,) = (tmp_path / "out").rglob("*_results.json")
    results = json.loads(path.read_text())
    figures, every = (
        results["throughput"],
        [one for answers in expected.values() for one in answers],
    )
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
        ({"pretrained": "x", "method": "full", "refused": "skip"}, InvalidParameter, "'skip'"),
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
LONGER = {"type": "text", "text": "Who is it? " * 9}


def test_an_answer_is_cut_before_what_ends_it(answering: Any, directory: Path) -> None:
    whole = said(directory, "full", "user : Who?\nassistant : ", []).text
    end = whole[3:5]
    request = Request([TEXT], max_new_tokens=6, until=[end, "never"], image_aspect_ratio="pad")
    (result,) = answering.generate_until([request])
    assert result.text == whole[: whole.index(end)].strip()


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ([{"type": "audio", "url": "a.mp3"}, TEXT], {}, "a message with audio"),
        ([{"type": "video", "url": "gone.mp4"}, TEXT], {}, "'gone.mp4' cannot be read"),
        ([{"type": "video", "url": [1, 2]}, TEXT], {}, "a video given as list"),
        ([{"type": "image", "url": 3}, TEXT], {}, "an image is of type 'int'"),
        ([{"type": "image", "url": "gone.png"}], {}, "'gone.png' cannot be read"),
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


class Task:
    """What lmms-eval's tasks make of a document: a text, and messages without what is before it."""

    def __init__(self, **config: Any):
        given = {
            "task": "task",
            "num_fewshot": 0,
            "description": "",
            "fewshot_delimiter": "\n\n",
            "doc_to_messages": None,
            "doc_to_visual": None,
        }
        self.config = SimpleNamespace(**{**given, **config})
        self.sampler = SimpleNamespace(docs=["Why?"])

    def doc_to_text(self, doc: str) -> str:
        return doc

    def fewshot_context(self, doc: str, num_fewshot: int) -> str:
        return f"{self.config.description}{'Why? So.' * num_fewshot}{doc}"

    def doc_to_messages(self, doc: str) -> list[dict[str, Any]]:
        text = self.fewshot_context(doc, self.config.num_fewshot)
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def request(self, context: str) -> SimpleNamespace:
        options = {"max_new_tokens": 4}
        return SimpleNamespace(args=(context, self.doc_to_messages, options, 0, "task", "test"))


@pytest.mark.parametrize(
    ("config", "context", "prompt"),
    [
        ({}, "Who?", "user : Who?"),
        ({}, "Be briefWho?", f"{BRIEF}user : Who?"),
        ({"description": "Ask. "}, "Ask. Who?", "user : Ask. Who?"),
        ({"description": "Ask. "}, "Be brief\n\nAsk. Who?", f"{BRIEF}user : Ask. Who?"),
        ({"num_fewshot": 1}, "Why? So.Who?", "user : Why? So.Who?"),
        ({}, "drawn anew", "user : Who?"),
    ],
)
def test_an_instruction_is_the_systems_turn(
    model: Any, directory: Path, config: dict[str, Any], context: str, prompt: str
) -> None:
    task, made = Task(**config), model(pretrained=str(directory), method="full")
    made.task_dict = {"task": {"test": ["Who?"]}}
    (result,) = made.generate_until([task.request(context)])
    assert result.text == said(directory, "full", f"{prompt}\nassistant : ", [], tokens=4).text


def test_a_system_prompt_may_be_given_to_the_model(
    model: Any, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("Be brief\n")
    expected = said(directory, "full", f"{BRIEF}user : Who?\nassistant : ", [], tokens=4).text
    for given in ("Be brief", str(tmp_path / "prompt.txt")):
        made = model(pretrained=str(directory), method="full", system_prompt=given)
        made.task_dict = {"task": {"test": ["Who?"]}}
        assert made.generate_until([Task().request("Who?")])[0].text == expected
    with pytest.raises(InvalidInput, match="give one of them"):
        made.generate_until([Task().request("Be longWho?")])


@pytest.mark.parametrize(
    ("config", "context", "says"),
    [
        ({"num_fewshot": 2, "doc_to_visual": "image"}, "Why? So.Who?", "leave --num_fewshot out"),
        ({"num_fewshot": 2, "doc_to_messages": list}, "Why? So.Who?", "num_fewshot=2"),
        ({"num_fewshot": 1}, "Be briefWhy? So.Who?", "system_prompt="),
    ],
)
def test_what_messages_would_leave_out_is_refused(
    answering: Any, config: dict[str, Any], context: str, says: str
) -> None:
    answering.task_dict = {"task": {"test": ["Who?"]}}
    with pytest.raises(InvalidInput, match=f"(?i){says}"):
        answering.generate_until([Task(**config).request(context)])
    for name in ("chat_template", "apply_chat_template"):
        with pytest.raises(InvalidInput, match="--apply_chat_template"):
            getattr(answering, name)


def test_a_document_that_the_policy_refuses_ends_all_or_is_counted(
    model: Any, directory: Path
) -> None:
    from lmms_eval.models.model_utils import gen_metrics

    few = "streaming_llm:budget=50%,sinks=16"
    requests = [Request([text], max_new_tokens=4) for text in (TEXT, LONGER)]
    made = model(pretrained=str(directory), method=few, strict=True)
    made.task_dict = {"task": {"test": [None]}}
    with pytest.raises(InvalidBudget) as caught:
        made.generate_until(requests)
    assert "refused=empty" in caught.value.__notes__[1]
    gen_metrics.reset_logged_metrics()
    made = model(pretrained=str(directory), method=few, strict=True, refused="empty")
    made.task_dict = {"task": {"test": [None]}}
    first, second = made.generate_until(requests)
    assert (first.text, first.token_counts.output_tokens) == ("", 0)
    assert second.token_counts.output_tokens > 0
    figures = gen_metrics.summarize_logged_metrics()
    assert figures["avg_refused"] == 1
    assert figures["avg_kv_ratio"] < 0.6  # of the document that was answered
    made.generate_until(requests[:1])  # nothing was answered: no ratio
    with pytest.raises(InvalidInput, match="audio"):  # that is no policy's refusal
        made.generate_until([Request([{"type": "audio", "url": "a.mp3"}])])


def test_images_may_be_files(answering: Any, pictures: list[Path]) -> None:
    given = [pictures[0], pictures[1]]
    as_paths = [{"type": "image", "url": str(path)} for path in given]
    as_images = [{"type": "image", "url": Image.open(path)} for path in given]
    first, second = (
        answering.generate_until([Request([*parts, TEXT], max_new_tokens=4)])[0]
        for parts in (as_paths, as_images)
    )
    assert first == second


def test_a_part_of_a_video_is_what_its_frames_are(answering: Any, tmp_path: Path) -> None:
    path = str(film(tmp_path / "film.mp4"))
    part = {"video_start": 1.0, "video_end": 2.0}
    as_frames = [
        {"type": "image", "url": image}
        for image in read_video(Path(path), frames=32, start=1.0, end=2.0).images
    ]
    first, second, third = (
        answering.generate_until([Request([*parts, TEXT], max_new_tokens=4)])[0]
        for parts in (
            [{"type": "video", "url": {"url": path, **part}}],
            [{"type": "video", "url": path, "start_time": 1.0, "end_time": 2.0}],
            as_frames,
        )
    )
    assert first == second == third
    assert first.token_counts.input_tokens > 11 * 9


def test_tasks_that_do_not_generate_are_refused(model: Any, answering: Any) -> None:
    for method in (answering.loglikelihood, answering.generate_until_multi_round):
        with pytest.raises(InvalidInput, match="Choose"):
            method([])
