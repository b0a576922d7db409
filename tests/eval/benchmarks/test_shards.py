"""Benchmarks in parquet shards, as repositories on the hub hold them: written here by pyarrow."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from foveate.errors import InvalidInput, MissingPackage
from foveate.prompts.sample import Sample
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import Folder, samples
from tests.eval.benchmarks.test_judged import Echo

Write = Callable[..., Path]
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
TEXT, TEXTS, NUMBER = pa.string(), pa.list_(pa.string()), pa.int64()

# columns and types of each repository, whether they are read or not
SCHEMAS = {
    "docvqa": {
        "questionId": TEXT,
        "question": TEXT,
        "question_types": TEXTS,
        "image": IMAGE,
        "docId": NUMBER,
        "ucsf_document_id": TEXT,
        "ucsf_document_page_no": TEXT,
        "answers": TEXTS,
        "data_split": TEXT,
    },
    "chartqa": {"type": TEXT, "question": TEXT, "answer": TEXT, "image": IMAGE},
    "textvqa": {
        "image_id": TEXT,
        "question_id": NUMBER,
        "question": TEXT,
        "question_tokens": TEXTS,
        "image": IMAGE,
        "image_width": NUMBER,
        "image_height": NUMBER,
        "answers": TEXTS,
        "set_name": TEXT,
        "ocr_tokens": TEXTS,
    },
    "ocrbench": {
        "dataset": TEXT,
        "question": TEXT,
        "question_type": TEXT,
        "answer": TEXTS,
        "image": IMAGE,
    },
    "textcaps": {
        "question_id": TEXT,
        "question": TEXT,
        "image": IMAGE,
        "image_id": TEXT,
        "caption_str": TEXTS,
        "reference_strs": TEXTS,
    },
    "mathvista": {
        "pid": TEXT,
        "question": TEXT,
        "image": TEXT,
        "decoded_image": IMAGE,
        "choices": TEXTS,
        "unit": TEXT,
        "precision": pa.float64(),
        "answer": TEXT,
        "question_type": TEXT,
        "answer_type": TEXT,
        "metadata": pa.struct({"split": TEXT}),
        "query": TEXT,
    },
}


def drawn(colour: str, form: str = "PNG", mode: str = "RGB") -> dict[str, Any]:
    """A cell with an image of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (30, 20), colour).convert(mode).save(out, format=form)
    return {"bytes": out.getvalue(), "path": "a.png"}


@pytest.fixture
def shards(tmp_path: Path) -> Write:
    """Writes each list of rows into a shard of its own; columns that a row lacks are null."""

    def write(name: str, place: str, *parts: list[dict[str, Any]]) -> Path:
        schema = pa.schema(list(SCHEMAS[name].items()))
        for i, rows in enumerate(parts):
            path = tmp_path / f"{place}-{i:05}-of-{len(parts):05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return tmp_path

    return write


def colour(sample: Sample) -> Any:
    (image,) = sample.images
    assert image.mode == "RGB"
    return image.getpixel((3, 3))


def test_docvqa_is_read_from_all_shards_of_its_validation_split_alone(shards: Write) -> None:
    rows = [
        {
            "questionId": str(i),
            "question": f"q{i}?",
            "answers": ["x", f"a{i}"],
            "image": drawn("red" if i % 2 else "blue"),
        }
        for i in range(40)
    ]
    shards("docvqa", "DocVQA/test", [{"questionId": "no", "question": "no", "image": drawn("red")}])
    shards("docvqa", "InfographicVQA/validation", rows[3:4])
    path = shards("docvqa", "DocVQA/validation", rows[:21], rows[21:], [])
    task = find_task(f"docvqa={path}")
    found = samples(task)
    assert [one.name for one in found] == [str(i) for i in range(40)]
    assert found[7].question.startswith("q7?\nAnswer")
    assert found[7].answers == ("x", "a7")
    assert {colour(one) for one in found[1::2]} == {(255, 0, 0)}
    assert {colour(one) for one in found[::2]} == {(0, 0, 255)}
    assert task.metric("a7", found[7]) == 1.0
    assert len(samples(task, 2)) == 2
    # a folder that holds nothing but the shards
    assert [one.name for one in samples(find_task(f"docvqa={path / 'DocVQA'}"), 3)] == list("012")


def test_chartqa_is_numbered_part_by_part(shards: Write) -> None:
    rows = [
        {"type": kind, "question": "?", "answer": answer, "image": drawn("red", mode="P")}
        for kind, answer in (
            ("human_test", "14"),
            ("human_test", "Yes"),
            ("augmented_test", "0.57"),
        )
    ]
    task = find_task(f"chartqa={shards('chartqa', 'data/test', rows)}")
    found = samples(task)
    assert [one.name for one in found] == ["human/0", "human/1", "augmented/0"]
    assert [task.metric("14.5", one) for one in found] == [1.0, 0.0, 0.0]
    assert colour(found[0]) == (255, 0, 0)


def test_textvqa_and_ocrbench(shards: Write, tmp_path: Path) -> None:
    people = ["dakota"] * 4 + ["no"] * 6
    path = shards(
        "textvqa",
        "data/validation",
        [{"question_id": 34602, "question": "brand?", "answers": people, "image": drawn("red")}],
    )
    task = find_task(f"textvqa={path}")
    (one,) = samples(task)
    assert (one.name, one.answers) == ("34602", tuple(people))
    assert task.metric("Dakota", one) == 1.0
    path = shards(
        "ocrbench",
        "data/test",
        [
            {
                "dataset": "IIIT5K",
                "question_type": "Regular Text Recognition",
                "question": "what?",
                "answer": ["CENTRE"],
                "image": drawn("red", "JPEG"),
            },
            {
                "dataset": "HME100k",
                "question_type": "Handwritten Mathematical Expression Recognition",
                "question": "LaTeX?",
                "answer": ["\\frac { 1 } {X}"],
                "image": drawn("red", mode="L"),
            },
        ],
    )
    task = find_task(f"ocrbench={path}")
    text, formula = samples(task)
    assert (text.name, formula.name) == ("0", "1")
    assert task.metric("It says 'centre'.", text) == 1.0
    assert task.metric("\\frac{1}{X}", formula) == 1.0
    assert task.metric("\\frac{1}{x}", formula) == 0.0


def test_textcaps_scores_are_those_of_the_release(shards: Write, folder: Folder) -> None:
    captions = {
        "a": ["a red stop sign", "stop sign in red"],
        "b": ["a bottle of wine"] * 2,
        "c": ["a bus to Rome", "the bus"],
    }
    rows = [
        {"image_id": name, "caption_str": several, "image": drawn("red")}
        for name, several in captions.items()
    ]
    path = shards("textcaps", "data/val", rows[:2], rows[2:])
    task = find_task(f"textcaps={path}")
    hub = samples(task)
    for shard in (path / "data").iterdir():
        shard.unlink()
    records = [
        {"image_id": name, "caption_str": one, "reference_strs": several}
        for name, several in captions.items()
        for one in several
    ]
    folder(
        [f"train_images/{name}.jpg" for name in captions], **{"TextCaps_0.1_val": {"data": records}}
    )
    released = samples(task)
    assert [(one.name, one.answers) for one in hub] == [(o.name, o.answers) for o in released]
    for one, other in zip(hub, released, strict=True):
        assert task.metric("a red bus", one) == task.metric("a red bus", other)
    assert task.metric("a red bus", hub[0]) > 0


def test_mathvista_has_its_prompts_in_the_rows(shards: Write) -> None:
    path = shards(
        "mathvista",
        "data/testmini",
        [
            {
                "pid": "1",
                "query": "Hint.\nq",
                "image": "images/1.jpg",
                "decoded_image": drawn("blue"),
                "answer": "1.2",
                "question_type": "free_form",
                "answer_type": "float",
                "precision": 1.0,
            },
            {
                "pid": "2",
                "query": "which?",
                "image": "images/2.jpg",
                "decoded_image": drawn("red"),
                "answer": "7 cm",
                "question_type": "multi_choice",
                "answer_type": "text",
                "choices": ["6 cm", "7 cm"],
            },
        ],
    )
    task = find_task(f"mathvista={path}", Echo("B"))
    free, choice = samples(task)
    assert (free.name, free.question, colour(free)) == ("1", "Hint.\nq", (0, 0, 255))
    assert task.metric("1.23", free) == 1.0
    assert task.metric("the second", choice) == 1.0


def test_what_a_folder_holds_decides_and_both_is_an_error(shards: Write, folder: Folder) -> None:
    row = {"type": "human_test", "question": "?", "answer": "1", "image": drawn("red")}
    path = shards("chartqa", "data/test", [row])
    assert [one.name for one in samples(find_task(f"chartqa={path}"))] == ["human/0"]
    for part in ("human", "augmented"):
        (path / f"test_{part}.json").write_text(json.dumps([]))
    with pytest.raises(InvalidInput, match=r"both test_human\.json and test-00000-of"):
        samples(find_task(f"chartqa={path}"))
    for part in ("human", "augmented"):
        (path / f"test_{part}.json").unlink()
    (path / "data" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(
        InvalidInput, match=r"no ChartQA: there is data, .* test-\*\.parquet of lmms"
    ):
        samples(find_task(f"chartqa={path}"))


def test_what_is_missing_or_broken_is_named(shards: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"questionId": "1", "question": "?", "answers": ["x"], "image": drawn("red")}

    def says(text: str, *parts: list[dict[str, Any]]) -> None:
        path = shards("docvqa", "validation", *parts)
        with pytest.raises(InvalidInput, match=text):
            samples(find_task(f"docvqa={path}"))

    says(
        r"00000-of-00001.parquet, row 1, field 'image' has no image",
        [good, good | {"image": None}],
    )
    says(
        r"row 0, field 'image': .* holds no a.png",
        [good | {"image": {"bytes": None, "path": "a.png"}}],
    )
    says(
        r"row 0, field 'image' cannot be read as an image",
        [good | {"image": {"bytes": b"GIF", "path": ""}}],
    )
    says(
        r"row 0: the field 'answers' is None; it must be a list of texts, at least 1",
        [good | {"answers": None}],
    )
    path = shards("docvqa", "validation", [good])
    task = find_task(f"docvqa={path}")
    one = path / "validation-00000-of-00001.parquet"
    pq.write_table(pq.read_table(one).drop_columns(["question", "answers"]), one)
    with pytest.raises(InvalidInput, match=r"has no column question, answers; it has questionId"):
        samples(task)
    one.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InvalidInput, match=r"cannot be read as Parquet.*Git LFS"):
        samples(task)
    one.rename(path / "validation-00001-of-00003.parquet")
    with pytest.raises(InvalidInput, match="holds 1 of 3 shards"):
        samples(task)
    shards("docvqa", "validation", [good])
    (path / "validation-00001-of-00003.parquet").unlink()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=r"pyarrow.*foveate\[parquet\]"):
        samples(task)
