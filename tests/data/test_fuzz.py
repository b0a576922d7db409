"""Bytes that nobody meant: what a user gives is read, or refused with an error of ours."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foveate.cli.calibrate.prompts import texts_of
from foveate.cli.prompt import Which, samples_of
from foveate.data import Record, decode_image, read_video
from foveate.data.folder import Folder
from foveate.data.images import FORMATS
from foveate.data.parquet import held_image, read_rows
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.mlvu import TASKS as MLVU
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.test_judged import problem
from tests.eval.benchmarks.test_longbench import record as long_record
from tests.eval.benchmarks.test_milebench import MOVING, content
from tests.fuzz import fuzzed
from tests.videos import KINDS, film


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with some replaced, some left out or put in, and perhaps cut off."""
    place = st.integers(0, len(whole))
    changes = st.lists(st.tuples(place, st.integers(0, 3), st.binary(max_size=4)), max_size=6)

    def change(changes: list[tuple[int, int, bytes]], end: int) -> bytes:
        held = bytearray(whole)
        for where, length, new in changes:
            held[where : where + length] = new
        return bytes(held[:end])

    return st.builds(change, changes, st.one_of(st.just(len(whole) + 99), place))


def refused_or(read: Callable[[], Any]) -> None:
    """Reads, or says why not. Anything else that is raised is a fault."""
    with contextlib.suppress(InvalidInput):
        read()


# ------------------------------------------------------------------- images

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 11, 4), dtype=np.uint8))
MODES = {
    "PNG": ("RGBA", "P", "I;16"),
    "TIFF": ("RGBA", "CMYK", "I;16", "F"),
    "PPM": ("RGB", "I"),
    "GIF": ("P",),
    "ICO": ("RGBA",),
    "JPEG": ("RGB", "CMYK"),
    "TGA": ("RGBA",),
}
IMAGES = [(form, mode) for form in FORMATS for mode in MODES.get(form, ("RGB",))]


def image_file(form: str, mode: str) -> bytes:
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if form in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    grey = np.asarray(NOISE)[..., 0]
    image = Image.fromarray(grey.astype(deep[mode])) if mode in deep else NOISE.convert(mode)
    image.save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize(("form", "mode"), IMAGES)
@given(data=st.data())
@fuzzed
def test_image_files(form: str, mode: str, data: st.DataObject) -> None:
    held = data.draw(damaged(image_file(form, mode)))
    refused_or(lambda: decode_image(held, "the image"))


# ------------------------------------------------------------------- videos


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a file of each kind."""
    folder = tmp_path_factory.mktemp("films")
    return {name: film(folder / name).read_bytes() for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@fuzzed
def test_video_files(
    name: str, films: dict[str, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(films[name])))
    refused_or(lambda: read_video(path, frames=3))


# ------------------------------------------------------------------- benchmarks and prompts

IMAGE = {
    "image": "a.png",
    "imgname": "a.png",
    "image_path": "a.png",
    "img_filename": "a.png",
    "imagename": "../a.png",
}
ASKED = {
    "questionId": 3,
    "question_id": 3,
    "question": "?",
    "query": "?",
    "label": "14",
    "answers": ["x", "y"],
    "instruction": "close",
    "bbox": [1, 2, 3, 4],
    "data_type": "icon",
    "dataset_name": "x",
    "type": "y",
    "answer": "x",
    "capability": ["ocr"],
    "image_id": "a",
    "reference_strs": ["a", "b"],
    "id": "7",
    "conversations": [{"value": "<image>"}, {"value": "It."}],
    **IMAGE,
}
FILES: dict[str, dict[str, Any]] = {
    "docvqa": {"val_v1.0.json": {"data": [ASKED, ASKED]}},
    "chartqa": {"test_human.json": [ASKED], "test_augmented.json": [ASKED]},
    "textvqa": {"TextVQA_0.5.1_val.json": {"data": [ASKED]}},
    "textcaps": {"TextCaps_0.1_val.json": {"data": [ASKED, ASKED]}},
    "ocrbench": {"OCRBench.json": [ASKED]},
    "screenspot_v2": {f"screenspot_{one}_v2.json": [ASKED] for one in ("mobile", "desktop", "web")},
    "mm_vet": {"mm-vet.json": {"v1": ASKED}},
    "llava_description": {"detail_1k.json": [ASKED]},
    "mathvista": {
        "testmini.json": {"1": problem(image="a.png", choices=["a", "b"])},
        "query.json": {"1": "q"},
    },
    "longbench_trec": {
        "trec.jsonl": long_record(["x"], all_classes=["x", "y"]),
        "dataset2prompt.json": {"trec": "{context}{input}"},
    },
    "milebench_s5": {"nuscenes/nuscenes.json": content("multi-choice", MOVING)},
    "lvbench": {
        "video_info.meta.jsonl": {
            "key": "v",
            "type": "x",
            "qa": [{**ASKED, "uid": "1", "answer": "A", "question_type": ["x"]}],
        }
    },
    "mlvu": {
        f"{one}.json": [{**ASKED, "candidates": ["x", "y"], "video": "v.mp4", "question_type": "x"}]
        for one in MLVU
    },
    "ovo_bench_forward": {
        "ovo_bench_new.json": [
            {**ASKED, "task": "CRR", "video": "v.mp4", "test_info": [{"realtime": 1, "type": 0}]},
            {**ASKED, "task": "REC", "video": "v.mp4", "activity": "x"}
            | {"test_info": [{"realtime": 1, "count": 0}]},
        ]
    },
    "streaming_bench_real": {
        "questions_real.json": [
            {
                "video_path": "./videos/v.mp4",
                "questions": [
                    {**ASKED, "task_type": "x", "time_stamp": "00:01:02", "answer": "A"}
                    | {"options": ["x", "y"]}
                ],
            }
        ]
    },
    "loogle_longdep_qa": {
        "longdep_qa.jsonl": {"input": "x", "qa_pairs": "[{'Q': '?', 'A': 'x', 'type': 'y'}]"},
        "task2prompt.json": {"longdep_qa": "{input}{Q}"},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with images where the records look for them."""
    for place in ("", "png", "train_images", "screenspotv2_image", "nuscenes/images"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name in ("a.png", "a.jpg", "b.jpg"):
            Image.new("RGB", (4, 4)).save(tmp_path / place / name)
    (tmp_path / "images").mkdir()
    for place in ("videos", "src_videos", *(f"video/{one}" for one in MLVU)):
        (tmp_path / place).mkdir(parents=True)
        (
            tmp_path / place / "v.mp4"
        ).touch()  # where videos are is looked at, and not what is in them
    return tmp_path


SMALL = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from(["\ud800", "../../etc/passwd", "/dev/zero", "a\0b", 10**400, "x" * 5000]),
)
VALUES = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def replaced(held: Any, steps: list[int], value: Any) -> Any:
    """The same with one of its parts, to which the steps lead, replaced."""
    if not steps or not isinstance(held, dict | list) or not held:
        return value
    keys = list(held) if isinstance(held, dict) else list(range(len(held)))
    key = keys[steps[0] % len(keys)]
    inner = replaced(held[key], steps[1:], value)
    if isinstance(held, dict):
        return {**held, key: inner}
    return [*held[:key], inner, *held[key + 1 :]]


def asked_of(task: str, folder: Path) -> None:
    """Everything that reads the samples, scores included."""
    found = find_task(f"{task}={folder}", lambda prompt: "1")  # type: ignore[arg-type]
    for sample in found.samples(9, 0):
        found.metric("1", sample)
        sample.text.encode()


@pytest.mark.parametrize("task", sorted(FILES))
def test_the_files_are_read_where_nothing_is_wrong(task: str, folder: Path) -> None:
    for name, held in FILES[task].items():
        (folder / name).write_text(json.dumps(held))
    asked_of(task, folder)


@pytest.mark.parametrize("task", sorted(FILES))
@given(data=st.data())
@fuzzed
def test_benchmarks(task: str, folder: Path, data: st.DataObject) -> None:
    for name, held in FILES[task].items():
        steps = data.draw(st.lists(st.integers(0, 20), max_size=5))
        other = replaced(held, steps, data.draw(VALUES)) if data.draw(st.booleans()) else held
        text = json.dumps(other).encode()
        (folder / name).write_bytes(data.draw(damaged(text)) if data.draw(st.booleans()) else text)
    refused_or(lambda: asked_of(task, folder))


PROMPT = {
    "prompt": "Which?",
    "images": ["a.png"],
    "answer": "x",
    "spans": [{"text": "x", "image": 0, "box": [0, 1, 2, 3]}, {"text": "Wh"}],
}


@given(data=st.data())
@fuzzed
def test_prompts_files(folder: Path, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 9), max_size=4))
    line = json.dumps(replaced(PROMPT, steps, data.draw(VALUES)))
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
    path = folder / "prompts.jsonl"
    path.write_bytes(data.draw(damaged(f"{line}\r\n{json.dumps(PROMPT)}".encode(encoding))))
    refused_or(lambda: texts_of(path, Which(9)))
    refused_or(lambda: list(samples_of(path, Which(9))))


# ------------------------------------------------------------------- parquet

PICTURES = {
    "struct": {"bytes": image_file("PNG", "RGBA"), "path": "a.png"},
    "path": "a.png",
    "bytes": image_file("PNG", "RGBA"),
}


@pytest.mark.parametrize("kind", sorted(PICTURES))
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@given(data=st.data())
@fuzzed
def test_parquet_files(kind: str, codec: str, folder: Path, data: st.DataObject) -> None:
    rows = [{"question": "?", "answers": ["x"], "image": PICTURES[kind]}] * 2
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, compression=codec)
    path = folder / "validation-00000-of-00001.parquet"
    path.write_bytes(data.draw(damaged(out.getvalue())))

    def read() -> None:
        for row in read_rows([path], ["question", "answers", "image"]):
            row.text("question")
            row.texts("answers")
            held_image(row, "image", Folder(folder))

    refused_or(read)


@given(cell=VALUES | st.binary() | st.fixed_dictionaries({"bytes": VALUES, "path": VALUES}))
@fuzzed
def test_cells_that_should_hold_an_image(folder: Path, cell: Any) -> None:
    refused_or(lambda: held_image(Record({"image": cell}, "row 3"), "image", Folder(folder)))
