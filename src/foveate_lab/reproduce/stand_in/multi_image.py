"""MileBench: a folder for each of its sets, with drawn forms and pictures."""

from __future__ import annotations

from random import Random
from typing import Any

from foveate_demo.scenes import BUILT_IN, form, some_facts
from foveate_lab.eval.benchmarks.milebench import TASKS
from foveate_lab.reproduce.stand_in.files import Writer

OPEN = {
    "Spot-the-Diff",
    "CLEVR-Change",
    "IEdit",
    "MMCoQA",
    "ALFRED",
    "TextNeedleInAHaystack",
    "ImageNeedleInAHaystack",
}
PAGES, CHOICES = 2, 4


def milebench(writer: Writer) -> None:
    """Write SET/SET.json and SET/images/ of all sets."""
    for sets in TASKS.values():
        for name in sets:
            _set(writer, name)


def _set(writer: Writer, name: str) -> None:
    data = [_sample(writer, name, number) for number in range(writer.count)]
    writer.json(
        f"{name}/{name}.json",
        {
            "meta_data": {
                "dataset": name,
                "split": "test",
                "num_sample": str(len(data)),
                "task_instruction": ["Read the images and answer the question."],
                "question_type": "open-ended" if name in OPEN else "multi-choice",
            },
            "data": data,
        },
    )


def _sample(writer: Writer, name: str, number: int) -> dict[str, Any]:
    r = writer.random(f"{name}/{number}")
    facts = some_facts(r, 2 * PAGES)
    pages = [form(r, (BUILT_IN,), facts[2 * i : 2 * i + 2], 4) for i in range(PAGES)]
    images = [f"{number}_{i}.png" for i in range(PAGES)]
    for image, page in zip(images, pages, strict=True):
        writer.image(f"{name}/images/{image}", page.image)
    field, value = r.choice(facts)
    images_text = "\n".join(f"Image {i}: {{image#{i}}}" for i in range(1, PAGES + 1))
    instance: dict[str, Any] = {
        "context": f"{images_text}\nQuestion: What is the {field.lower()}?",
        "images_path": images,
    }
    answer: str = value
    if name not in OPEN:
        instance["choice_list"] = choices = _choices(r, [text for _, text in facts], value)
        answer = choices[choices.index(value)]
    return {
        "sample_id": number,
        "image_quantity_level": "Few",
        "task_instruction_id": 0,
        "task_instance": instance,
        "response": answer,
    }


def _choices(r: Random, values: list[str], right: str) -> list[str]:
    """Return the right value among others."""
    wrong = [value for value in dict.fromkeys(values) if value != right][: CHOICES - 1]
    options = [right, *wrong]
    r.shuffle(options)
    return options
