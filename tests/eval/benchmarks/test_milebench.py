"""MileBench's folders, as prompts and scores."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.errors import InvalidInput
from foveate.eval.benchmarks.milebench import TASKS
from foveate.eval.sample import PLACE
from foveate.eval.tasks import find_task, find_tasks
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


def test_what_is_not_as_released_is_named(folder: Folder) -> None:
    path = folder([], **{"nuscenes/nuscenes": content("essay")})
    with pytest.raises(InvalidInput, match=r"nuscenes: the question type 'essay'"):
        samples(find_task(f"milebench_s5={path}"))
    path = folder([], **{"nuscenes/nuscenes": content("open-ended", MOVING)})
    with pytest.raises(InvalidInput, match=r"holds no images/a.jpg"):
        samples(find_task(f"milebench_s5={path}"))


def test_all_tasks_are_asked_at_once(folder: Folder) -> None:
    path = folder([])
    names = [task.name for task in find_tasks(f"milebench={path}")]
    assert names == [f"milebench_{name.replace('-', '').lower()}" for name in TASKS]
    with pytest.raises(InvalidInput, match="write milebench_t1=FOLDER"):
        find_tasks("milebench")
