"""Files that are missing, of another kind, or not whole: an error that names each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.errors import FoveateError, InvalidInput
from foveate_lab.eval.tasks import find_task, find_tasks, separate_tasks
from tests.eval.benchmarks.conftest import Folder, samples
from tests.eval.benchmarks.test_by_hand import cell, table
from tests.eval.benchmarks.test_judged import problem
from tests.eval.benchmarks.test_milebench import MOVING, content

TALK = [{"from": "human", "value": "<image>\nSay."}, {"from": "gpt", "value": "x"}]
SCREEN = {
    "img_filename": "a.png",
    "bbox": [1, 1, 5, 5],
    "instruction": "close",
    "data_type": "icon",
}
# of each benchmark: its file, what it holds, and an image that it names
FILES: dict[str, tuple[str, Any, str]] = {
    "chartqa": ("test_human.json", [{"imgname": "a.png", "query": "?", "label": "1"}], "png/a.png"),
    "docvqa": (
        "val_v1.0.json",
        {"data": [{"questionId": 1, "question": "?", "image": "d/a.png", "answers": ["x"]}]},
        "d/a.png",
    ),
    "llava_description": (
        "detail_1k.json",
        [{"id": "1", "image": "coco/a.jpg", "conversations": TALK}],
        "coco/a.jpg",
    ),
    "mathvista": ("testmini.json", {"1": problem()}, "images/1.jpg"),
    "milebench_s5": (
        "nuscenes/nuscenes.json",
        content("multi-choice", MOVING),
        "nuscenes/images/a.jpg",
    ),
    "mm_vet": (
        "mm-vet.json",
        [{"image": "a.png", "question": "?", "answer": "x"}],
        "images/a.png",
    ),
    "ocrbench": (
        "OCRBench.json",
        [
            {
                "id": 0,
                "dataset_name": "x",
                "type": "y",
                "image_path": "a.png",
                "question": "?",
                "answers": ["x"],
            }
        ],
        "a.png",
    ),
    "screenspot_v2": ("screenspot_mobile_v2.json", [SCREEN], "screenspotv2_image/a.png"),
    "textcaps": (
        "TextCaps_0.1_val.json",
        {"data": [{"image_id": "a", "reference_strs": ["x"]}]},
        "train_images/a.jpg",
    ),
    "textvqa": (
        "TextVQA_0.5.1_val.json",
        {"data": [{"question_id": 1, "question": "?", "image_id": "a", "answers": ["x"]}]},
        "train_images/a.jpg",
    ),
}
# and the files without which it is not whole
BESIDE: dict[str, dict[str, Any]] = {
    "chartqa": {"test_augmented.json": []},
    "mathvista": {"query.json": {"1": "q"}},
    "screenspot_v2": {f"screenspot_{name}_v2.json": [] for name in ("desktop", "web")},
}


def written(path: Path, name: str) -> tuple[Path, Path]:
    """The benchmark's file and its image, in a folder with all else that it needs."""
    file, held, image = FILES[name]
    for place in (file, image):
        (path / place).parent.mkdir(parents=True, exist_ok=True)
    (path / file).write_text(json.dumps(held))
    for other, beside in BESIDE.get(name, {}).items():
        (path / other).write_text(json.dumps(beside))
    for place in {image, image.replace("a.jpg", "b.jpg")}:
        Image.effect_noise((90, 60), 90).save(path / place)
    return path / file, path / image


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    file, image = written(tmp_path, name)
    (one, *_) = find_task(f"{name}={tmp_path}").samples(1, 0)
    assert one.images[0].size == (90, 60)
    whole = image.read_bytes()

    def says(*texts: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            next(find_task(f"{name}={tmp_path}").samples(1, 0))
        assert all(text in str(caught.value) for text in texts), str(caught.value)

    image.write_bytes(whole[: len(whole) // 2])
    says(image.name, "cannot be read as an image")
    image.write_text("no image")
    says(image.name, "its format is none of PNG, JPEG")
    image.unlink()
    says(file.name, "holds no", image.name)
    image.write_bytes(whole)
    held = file.read_text()
    file.write_text(held[: len(held) // 2])
    says(file.name, "JSON")
    file.write_text('"a text"')
    says(file.name, "it must be")
    file.write_bytes(b"\xff\xd8\xff\xe0")
    says(file.name, "UTF-8")
    file.unlink()
    says("holds no", file.name.split("_")[0].split(".")[0])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("milebench_t9", "no task named 'milebench_t9'. Did you mean 'milebench_"),
        ("longbench_qaspr=/x", "Did you mean 'longbench_qasper'?"),
        ("milebench_t1(set=ALFRED)=/", "set='ALFRED': give one of 'ActionLocalization'"),
        ("loogle_longdep_qa(kind=x)=/", "kind='x': give one of 'comprehension_and_reasoning'"),
        ("screenspot_v2(screen=tv)=/", "screen='tv': give one of 'mobile', 'desktop', 'web'"),
        ("docvqa(longest=0)=/", "longest=0: give an int from 1"),
        ("docvqa(prompt=x)=/", "docvqa has no option 'prompt'. Known: longest, max_pixels"),
        ("docvqa(longest)=/", "'longest' is not of the form key=value"),
        ("docvqa(min_pixels=9,max_pixels=4)=/", "min_pixels=9 is more than max_pixels=4"),
        ("docvqa(longest=5)", "write docvqa=FOLDER"),
    ],
)
def test_an_unknown_task_or_option_is_named(name: str, says: str) -> None:
    with pytest.raises(FoveateError) as caught:
        find_tasks(name)
    assert says in str(caught.value)


def test_a_table_that_is_not_whole_is_named(tmp_path: Path) -> None:
    row = {"index": "1", "image": cell("red"), "question": "?", "answer": "['x']", "category": "y"}
    for made, says in (
        ({"image": "no base64!"}, "row 0, field 'image' cannot be read as an image"),
        ({"image": cell("red")[:-40]}, "row 0, field 'image' cannot be read as an image"),
        ({"answer": "['x'"}, "row 0: the field 'answers' is \"['x'\"; it must be a list"),
        ({"category": "y\tz"}, "row 0: it has 6 cells, and the header 5"),
        ({"question": ""}, "row 0: the field 'question' is None"),
    ):
        path = table(tmp_path, "OCRBench.tsv", {**row, **made})
        with pytest.raises(InvalidInput) as caught:
            samples(find_task(f"ocrbench={path}"))
        assert f"{path}/OCRBench.tsv, {says}" in str(caught.value)
    table(tmp_path, "OCRBench.tsv", {"index": "1", "image": "x"})
    with pytest.raises(
        InvalidInput, match=r"has no column question, answer, category; it has index"
    ):
        samples(find_task(f"ocrbench={tmp_path}"))


def test_a_list_of_tasks_is_cut_at_commas_outside_of_options(folder: Folder) -> None:
    text = "chart, milebench_s5(longest=9,set=nuscenes)=/a,b(c)=/d"
    assert separate_tasks(text) == [
        "chart",
        "milebench_s5(longest=9,set=nuscenes)=/a",
        "b(c)=/d",
    ]
    task = find_task(f"docvqa(max_pixels=9,longest=5)={folder([])}")
    assert (task.name, task.longest, task.pixels.maximum) == (
        "docvqa(longest=5,max_pixels=9)",
        5,
        9,
    )
    assert find_task(f"mm_vet(image=after)={folder([])}").name == "mm_vet"
