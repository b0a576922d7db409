"""Published benchmarks, from small folders as their authors release them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.core.errors import InvalidInput
from foveate.eval.benchmarks import BENCHMARKS
from foveate.eval.sample import Sample, Task
from foveate.eval.tasks import find_task

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes files: JSON for everything that is no image's name."""

    def write(images: list[str], **files: Any) -> Path:
        for name in images:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (200, 100), "white").save(path)
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return write


def samples(task: Task, count: int = 99) -> list[Sample]:
    return list(task.samples(count, 0))


def test_docvqa(folder: Folder) -> None:
    record = {"questionId": 337, "question": "what is the date?",
              "image": "documents/xnbl0037_1.png",
              "docId": 279, "ucsf_document_id": "xnbl0037", "answers": ["1/8/93", "8 Jan"],
              "data_split": "val"}  # fmt: skip
    path = folder(["documents/xnbl0037_1.png"],
                  **{"val_v1.0_withQT": {"data": [record]}})  # fmt: skip
    task = find_task(f"docvqa={path}")
    (one,) = samples(task)
    assert one.name == "337"
    assert one.question.startswith("what is the date?\nAnswer")
    assert one.images[0].size == (200, 100)
    assert task.metric("1/8/93", one) == 1.0
    assert task.metric("1/8/92", one) == pytest.approx(5 / 6)


def test_chartqa_has_what_people_asked_first(folder: Folder) -> None:
    human = [{"imgname": "166.png", "query": "How many?", "label": "14"}]
    more = [{"imgname": "7.png", "query": "Who?", "label": "Inspired"},
            {"imgname": "7.png", "query": "What share?", "label": "0.57"}]  # fmt: skip
    path = folder(["png/166.png", "png/7.png"], test_human=human, test_augmented=more)
    task = find_task(f"chartqa={path}")
    found = samples(task)
    assert [one.name for one in found] == ["human/0", "augmented/0", "augmented/1"]
    assert [task.metric("14.5", one) for one in found] == [1.0, 0.0, 0.0]
    assert task.metric("58%", found[2]) == 1.0
    assert len(samples(task, 2)) == 2


def test_ocrbench_compares_formulae_without_blanks(folder: Folder) -> None:
    records = [
        {"dataset_name": "IIIT5K", "type": "Regular Text Recognition", "id": 0,
         "image_path": "IIIT5K/1.png", "question": "what is written?", "answers": ["CENTRE"]},
        {"dataset_name": "HME100k", "type": "Handwritten Mathematical Expression Recognition",
         "id": 1, "image_path": "HME/2.png", "question": "write LaTeX",
         "answers": ["\\frac { 1 } {X}"]},
    ]  # fmt: skip
    path = folder(["IIIT5K/1.png", "HME/2.png"], OCRBench=records)
    task = find_task(f"ocrbench={path}")
    text, formula = samples(task)
    assert task.metric("It says 'centre'.", text) == 1.0
    assert task.metric("so \\frac{1}{X}", formula) == 1.0
    assert task.metric("so \\frac{1}{x}", formula) == 0.0


@pytest.mark.parametrize(
    ("said", "right"),
    [("[100, 50, 120, 60]", 1.0), ("[0.5, 0.5, 0.6, 0.6]", 1.0), ("click (110, 55)", 1.0),
     ("0.55,0.55", 1.0), ("[10, 50, 12, 60]", 0.0), ("[100, 50]", 1.0), ("[99, 50]", 0.0),
     ("nowhere", 0.0), ("7", 0.0)],
)  # fmt: skip
def test_screenspot_wants_the_centre_in_the_box(folder: Folder, said: str, right: float) -> None:
    record = {"img_filename": "a.png", "bbox": [100, 50, 20, 10], "instruction": "close",
              "data_type": "icon", "data_source": "windows"}  # fmt: skip
    path = folder(["screenspotv2_image/a.png"], screenspot_mobile_v2=[record],
                  screenspot_desktop_v2=[], screenspot_web_v2=[record])  # fmt: skip
    task = find_task(f"screenspot_v2={path}")
    one, other = samples(task)
    assert (one.name, other.name) == ("mobile/0", "web/0")
    assert '"close"' in one.question
    assert task.metric(said, one) == right


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_what_is_missing_is_named(name: str, folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"write {name}=FOLDER"):
        find_task(name)
    with pytest.raises(InvalidInput, match=r"'/nowhere' does not exist.*has to hold"):
        find_task(f"{name}=/nowhere")
    with pytest.raises(InvalidInput, match="holds no"):
        samples(find_task(f"{name}={tmp_path}"))


def test_a_record_that_is_not_as_released_and_a_missing_image_are_named(folder: Folder) -> None:
    path = folder([], OCRBench=[{"id": 0}])
    with pytest.raises(InvalidInput, match=r"ocrbench: a record in .*KeyError"):
        samples(find_task(f"ocrbench={path}"))
    path = folder([], test_human=[{"imgname": "no.png", "query": "?", "label": "1"}])
    with pytest.raises(InvalidInput, match=r"holds no png/no.png or no.png"):
        samples(find_task(f"chartqa={path}"))
