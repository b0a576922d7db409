"""MileBench's folders, as prompts and scores."""

from __future__ import annotations

import re
from typing import Any

import pytest
from PIL import Image

from foveate.errors import InvalidInput, InvalidParameter
from foveate.prompts.sample import PLACE
from foveate_lab.eval.benchmarks.milebench import TASKS
from foveate_lab.eval.tasks import find_task, find_tasks
from tests.eval.benchmarks.conftest import Folder, samples


def content(kind: str, *instances: dict[str, Any]) -> dict[str, Any]:
    """A set's file."""
    data = [
        {
            "sample_id": i,
            "task_instruction_id": 1,
            "task_instance": one["in"],
            "response": one["out"],
            "image_quantity_level": "Few",
        }
        for i, one in enumerate(instances)
    ]
    meta = {
        "task_instruction": ["Not this.", "Look and answer."],
        "question_type": kind,
        "num_sample": len(data),
    }
    return {"meta_data": meta, "data": data}


MOVING = {
    "in": {
        "context": "{image#1}{image#2} Which way?",
        "images_path": ["a.jpg", "b.jpg"],
        "choice_list": ["to the left", "to the right"],
    },
    "out": "to the right",
}


def test_the_sets_make_twelve_tasks() -> None:
    assert len(TASKS) == 12
    assert len({name for sets in TASKS.values() for name in sets}) == 29


def test_a_prompt_is_instruction_context_and_choices(folder: Folder) -> None:
    path = folder(
        [f"{name}/images/{image}.jpg" for name in TASKS["T-3"] for image in "ab"],
        **{f"{name}/{name}": content("multi-choice", MOVING, MOVING) for name in TASKS["T-3"]},
    )
    task = find_task(f"milebench_t3={path}")
    found = samples(task)
    assert [one.name for one in found] == [
        "EgocentricNavigation/0",
        "MovingDirection/0",
        "EgocentricNavigation/1",
        "MovingDirection/1",
    ]
    one = found[0]
    assert one.text == (
        f"Look and answer.\n{PLACE}{PLACE} Which way?\nChoice list: \nA. to the left\n"
        "B. to the right\nYour answer is: "
    )
    assert one.question == (
        " Which way?\nChoice list: \nA. to the left\nB. to the right\nYour answer is: "
    )
    assert len(one.images) == 2
    assert [task.metric(said, one) for said in ("B", "To the right.", "A", "")] == [1, 1, 0, 0]


def test_open_answers_needles_and_many_choices(folder: Folder) -> None:
    pages = {"in": {"context": "See {table#1}: how much?", "images_path": ["a.jpg"]}, "out": 214}
    change = {
        "in": {"context": "{image#1} {image#2} What changed?", "images_path": ["a.jpg", "a.jpg"]},
        "out": "The red ball moved.",
    }
    many = {
        "in": {
            "context": "{image#1} Who?",
            "images_path": ["a.jpg"],
            "choice_list": [f"name {i}" for i in range(30)],
        },
        "out": "name 3",
    }
    sets = {
        "TextNeedleInAHaystack": ("open-ended", pages),
        "MMCoQA": ("open-ended", pages),
        "ALFRED": ("open-ended", change),
        "GPR1200": ("multi-choice", many),
    }
    path = folder(
        [f"{name}/images/a.jpg" for name in sets],
        **{f"{name}/{name}": content(*made) for name, made in sets.items()},
    )
    needle = find_task(f"milebench_n1={path}")
    (one,) = samples(needle)
    assert one.text == f"Look and answer.\nSee {PLACE}: how much?"
    assert [needle.metric(said, one) for said in ("It is 214.", "2140")] == [1, 0]
    last = find_task(f"milebench_s4={path}")
    within, moved = samples(last)
    assert [last.metric(said, within) for said in ("2140", "21")] == [1, 0]
    assert last.metric("the red ball", moved) == pytest.approx(2 * 0.75 / 1.75, abs=1e-6)
    people = find_task(f"milebench_i1={path}")
    (who,) = samples(people)
    assert "\nname 0\nname 1\n" in who.text
    assert people.metric("name 3", who) == 1.0


def test_a_record_need_not_say_how_many_images_it_counts_as_having(folder: Folder) -> None:
    path = folder(
        [f"{name}/images/{image}.jpg" for name in TASKS["T-3"] for image in "ab"],
        **{f"{name}/{name}": content("multi-choice", MOVING, MOVING) for name in TASKS["T-3"]},
    )
    file = path / "MovingDirection/MovingDirection.json"
    file.write_text(file.read_text().replace(', "image_quantity_level": "Few"', "", 1))
    found = samples(find_task(f"milebench_t3={path}"))
    levels = {one.name: one.labels.get("level") for one in found}
    assert (levels["MovingDirection/0"], levels["MovingDirection/1"]) == (None, "Few")


def test_what_is_not_as_released_is_named(folder: Folder) -> None:
    path = folder([], **{"nuscenes/nuscenes": content("essay")})
    with pytest.raises(InvalidInput, match=r"nuscenes: the question type 'essay'"):
        samples(find_task(f"milebench_s5={path}"))
    path = folder([], **{"nuscenes/nuscenes": content("open-ended", MOVING)})
    with pytest.raises(InvalidInput, match=r"holds no images/a.jpg"):
        samples(find_task(f"milebench_s5={path}"))


class Words:
    """A tokenizer whose tokens are words; a blank belongs to the word behind it."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, text: str, **settings: Any) -> dict[str, Any]:
        new = re.findall(r"\s*\S+", text)
        self.words += new
        return {"input_ids": list(range(len(self.words) - len(new), len(self.words)))}

    def decode(self, ids: list[int], **settings: Any) -> str:
        return "".join(self.words[i] for i in ids)


@pytest.mark.parametrize(
    ("room", "context", "shown"),
    [
        # images count 3, the words of the pieces 1, 2, 0 and 4
        (16, "one{}\n{}\n a b{} c d e f", (0, 1, 2)),
        (15, "{}\n{}\n a b{} c d e f", (0, 1, 2)),
        (14, "{} a b{} c d e f", (1, 2)),
        (11, " a b{} c d e f", (2,)),
        (9, " a b{} c d e f", (2,)),
        (8, "{} c d e f", (2,)),
        (6, " c d e f", ()),
        (3, " d e f", ()),
    ],
)
def test_a_long_prompt_keeps_its_instruction_and_its_end(
    folder: Folder, room: int, context: str, shown: tuple[int, ...]
) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg"]
    asked = {"context": "one{image#1}{image#2} a b{image#3} c d e f", "images_path": names}
    path = folder(
        [f"nuscenes/images/{name}" for name in names],
        **{"nuscenes/nuscenes": content("open-ended", {"in": asked, "out": "x"})},
    )
    options = f"longest_prompt={3 + room},image_tokens=3"  # the instruction has three words
    task = find_task(f"milebench_s5({options})={path}")
    (one,) = samples(task)
    assert task.fit is not None
    fit = task.fit(Words(), one)
    assert fit.text == "Look and answer.\n" + context.replace("{}", PLACE)
    assert fit.images == tuple(one.images[place] for place in shown)
    assert task.name == f"milebench_s5({options})"
    (whole,) = samples(find_task(f"milebench_s5(longest_prompt=null)={path}"))
    assert len(task.fit(Words(), whole).images) == 3


def test_an_instruction_that_is_too_long_is_named(folder: Folder) -> None:
    path = folder(
        ["nuscenes/images/a.jpg", "nuscenes/images/b.jpg"],
        **{"nuscenes/nuscenes": content("multi-choice", MOVING)},
    )
    task = find_task(f"milebench_s5(longest_prompt=3)={path}")
    assert task.fit is not None
    with pytest.raises(InvalidInput, match=r"nuscenes/0: its instruction alone has longest_prompt"):
        task.fit(Words(), samples(task)[0])


def test_images_are_joined_to_one(folder: Folder) -> None:
    """Here, or as the authors' files have it."""
    path = folder([], **{"nuscenes/nuscenes": content("multi-choice", MOVING)})
    (path / "nuscenes/images").mkdir()
    for name, colour in (("a.jpg", "red"), ("b.jpg", "blue")):
        Image.new("RGB", (40, 20), colour).save(path / "nuscenes/images" / name, "PNG")
    task = find_task(f"milebench_s5(combined=true)={path}")
    (one,) = samples(task)
    (page,) = one.images
    assert page.size == (1600, 800)
    assert [page.getpixel(place) for place in ((5, 5), (1590, 5))] == [(255, 0, 0), (0, 0, 255)]
    # "Image 1" stands in white on black at the lower edge
    label = page.crop((330, 740, 470, 800))
    assert {(0, 0, 0), (255, 255, 255)} <= {colour for _, colour in label.getcolors(9999) or ()}
    assert task.fit is not None
    asked = task.fit(Words(), one)
    assert len(asked.images) == 1
    assert asked.text.startswith(
        f"{PLACE}\nLook and answer.\n<Image 1> <Image 2>  Which way?\nChoice list: "
    )
    made = content("multi-choice", MOVING)
    made["data"][0]["task_instance"]["combined_1_images"] = ["0-0.jpg"]
    folder(["nuscenes/combined_1_images/0-0.jpg"], **{"nuscenes/nuscenes_combined_1": made})
    assert samples(task)[0].images[0].size == (200, 100)


def test_one_set_of_a_task_is_asked_alone(folder: Folder) -> None:
    path = folder(
        ["MovingDirection/images/a.jpg", "MovingDirection/images/b.jpg"],
        **{"MovingDirection/MovingDirection": content("multi-choice", MOVING)},
    )
    task = find_task(f"milebench_t3(set=MovingDirection)={path}")
    (one,) = samples(task)
    assert one.labels == {
        "set": "MovingDirection",
        "kind": "multi-choice",
        "level": "Few",
        "images": 2,
    }
    assert task.longest == 512
    with pytest.raises(InvalidParameter, match=r"set='ALFRED': give one of 'EgocentricNavigation'"):
        find_task(f"milebench_t3(set=ALFRED)={path}")
    with pytest.raises(InvalidParameter, match=r"milebench_t3 has no option 'sets'. Did you mean"):
        find_task(f"milebench_t3(sets=ALFRED)={path}")


def test_all_tasks_are_asked_at_once(folder: Folder) -> None:
    path = folder([])
    names = [task.name for task in find_tasks(f"milebench={path}")]
    assert names == [f"milebench_{name.replace('-', '').lower()}" for name in TASKS]
    with pytest.raises(InvalidInput, match="write milebench_t1=FOLDER"):
        find_tasks("milebench")
