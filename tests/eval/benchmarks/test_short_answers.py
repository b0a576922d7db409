"""Benchmarks of short answers, from small folders as their authors release them."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import Folder, samples


def test_docvqa(folder: Folder) -> None:
    record = {
        "questionId": 337,
        "question": "what is the date?",
        "image": "documents/xnbl0037_1.png",
        "docId": 279,
        "ucsf_document_id": "xnbl0037",
        "answers": ["1/8/93", "8 Jan"],
        "data_split": "val",
    }
    path = folder(["documents/xnbl0037_1.png"], **{"val_v1.0_withQT": {"data": [record]}})
    task = find_task(f"docvqa={path}")
    (one,) = samples(task)
    assert one.name == "337"
    assert one.question.startswith("what is the date?\nAnswer")
    assert one.images[0].size == (200, 100)
    assert task.metric("1/8/93", one) == 1.0
    assert task.metric("1/8/92", one) == pytest.approx(5 / 6)


def test_chartqa_has_what_people_asked_first(folder: Folder) -> None:
    human = [{"imgname": "166.png", "query": "How many?", "label": "14"}]
    more = [
        {"imgname": "7.png", "query": "Who?", "label": "Inspired"},
        {"imgname": "7.png", "query": "What share?", "label": "0.57"},
    ]
    path = folder(["png/166.png", "png/7.png"], test_human=human, test_augmented=more)
    task = find_task(f"chartqa={path}")
    found = samples(task)
    assert [one.name for one in found] == ["human/0", "augmented/0", "augmented/1"]
    assert [task.metric("14.5", one) for one in found] == [1.0, 0.0, 0.0]
    assert task.metric("58%", found[2]) == 1.0
    assert len(samples(task, 2)) == 2


def test_ocrbench_compares_formulae_without_blanks(folder: Folder) -> None:
    records = [
        {
            "dataset_name": "IIIT5K",
            "type": "Regular Text Recognition",
            "id": 0,
            "image_path": "IIIT5K/1.png",
            "question": "what is written?",
            "answers": ["CENTRE"],
        },
        {
            "dataset_name": "HME100k",
            "type": "Handwritten Mathematical Expression Recognition",
            "id": 1,
            "image_path": "HME/2.png",
            "question": "write LaTeX",
            "answers": ["\\frac { 1 } {X}"],
        },
    ]
    path = folder(["IIIT5K/1.png", "HME/2.png"], OCRBench=records)
    task = find_task(f"ocrbench={path}")
    text, formula = samples(task)
    assert task.metric("It says 'centre'.", text) == 1.0
    assert task.metric("so \\frac{1}{X}", formula) == 1.0
    assert task.metric("so \\frac{1}{x}", formula) == 0.0


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("[100, 50, 120, 60]", 1.0),
        ("[0.5, 0.5, 0.6, 0.6]", 1.0),
        ("click (110, 55)", 1.0),
        ("0.55,0.55", 1.0),
        ("[10, 50, 12, 60]", 0.0),
        ("[100, 50]", 1.0),
        ("[99, 50]", 0.0),
        ("nowhere", 0.0),
        ("7", 0.0),
    ],
)
def test_screenspot_wants_the_centre_in_the_box(folder: Folder, said: str, right: float) -> None:
    record = {
        "img_filename": "a.png",
        "bbox": [100, 50, 20, 10],
        "instruction": "close",
        "data_type": "icon",
        "data_source": "windows",
    }
    path = folder(
        ["screenspotv2_image/a.png"],
        screenspot_mobile_v2=[record],
        screenspot_desktop_v2=[],
        screenspot_web_v2=[record],
    )
    task = find_task(f"screenspot_v2={path}")
    one, other = samples(task)
    assert (one.name, other.name) == ("mobile/0", "web/0")
    assert ": close. " in one.question
    assert one.labels["class"] == "mobile icon"
    assert task.metric(said, one) == right
    (plain,) = samples(find_task(f"screenspot_v2(prompt=plain,screen=web)={path}"))
    assert plain.name == "web/0"
    assert '"close"' in plain.question


def test_textvqa_asks_ten_people(folder: Folder) -> None:
    people = ["nous les gosses"] * 4 + ["dakota"] * 2 + ["The Dakota"] * 2 + ["no"] * 2
    record = {
        "question_id": 34602,
        "question": "what is the brand?",
        "image_id": "003a8a",
        "answers": people,
    }
    path = folder(["train_images/003a8a.jpg"], **{"TextVQA_0.5.1_val": {"data": [record]}})
    task = find_task(f"textvqa={path}")
    (one,) = samples(task)
    assert one.name == "34602"
    assert task.metric("Nous les gosses.", one) == 1.0
    assert task.metric("the Dakota", one) == 1.0  # four with the article
    assert task.metric("no", one) == pytest.approx((8 * 2 / 3 + 2 * 1 / 3) / 10)
    assert task.metric("yes", one) == 0.0


def test_textcaps_has_one_sample_an_image_and_weighs_words_over_all(folder: Folder) -> None:
    captions = {
        "a": ["a red stop sign", "stop sign in red"],
        "b": ["a bottle of wine"] * 2,
        "c": ["a bus to Rome", "the bus"],
    }
    records = [
        {"image_id": name, "caption_str": one, "reference_strs": several}
        for name, several in captions.items()
        for one in several
    ]
    path = folder(
        [f"train_images/{name}.jpg" for name in captions], **{"TextCaps_0.1_val": {"data": records}}
    )
    task = find_task(f"textcaps={path}")
    found = samples(task)
    assert [one.name for one in found] == ["a", "b", "c"]
    assert found[0].answers == ("a red stop sign", "stop sign in red")
    assert task.reference
    assert task.metric("A bottle of wine.", found[1]) == pytest.approx(10)
    assert task.metric("a", found[1]) == 0  # said of every image
    first = samples(task, 1)[0]
    assert task.metric("a red stop sign", first) == task.metric("a red stop sign", found[0])


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
    with pytest.raises(
        InvalidInput, match=r"OCRBench.json, record 0: there is no field 'image_path'"
    ):
        samples(find_task(f"ocrbench={path}"))
    human = [{"imgname": "no.png", "query": "?", "label": "1"}]
    path = folder([], test_human=human, test_augmented=[])
    with pytest.raises(InvalidInput, match=r"holds no png/no.png or no.png"):
        samples(find_task(f"chartqa={path}"))


def test_llava_instruct_is_drawn_from_all_of_its_file(folder: Folder) -> None:
    """Images of conversations that are not drawn, or are too long or short, are not opened."""

    def record(number: int) -> dict[str, object]:
        asked = " ".join(["word"] * (40 * number))
        return {
            "id": number,
            "image": f"coco/{number}.png",
            "conversations": [
                {"from": "human", "value": f"<image>\n{asked}"},
                {"from": "gpt", "value": "x"},
            ],
        }

    there = [f"coco/{number}.png" for number in range(13, 20)]
    path = folder(there, llava_v1_5_mix665k=[record(number) for number in range(1, 20)])
    named = f"llava_instruct(seed=0,min_words=501)={path}"
    drawn = [one.name for one in samples(find_task(named), 3)]
    assert drawn != ["13", "14", "15"]
    assert {*drawn} <= {str(number) for number in range(13, 20)}
    assert [one.name for one in samples(find_task(named), 3)] == drawn
    other = f"llava_instruct(seed=1,min_words=501)={path}"
    assert [one.name for one in samples(find_task(other), 7)] != [
        one.name for one in samples(find_task(named), 7)
    ]
    within = samples(find_task(f"llava_instruct(min_words=520,max_words=640)={path}"), 9)
    assert [one.name for one in within] == ["13", "14", "15", "16"]
