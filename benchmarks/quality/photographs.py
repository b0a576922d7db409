"""Probe passes with photographs in the prompt: right answers of methods that use them.

    python -m benchmarks.quality.photographs [--limit 20] [--protocol query-agnostic]

The demo model reads drawn pages and names small drawings; it was not trained on photographs and
cannot say what one shows. So the questions are about a page: between two photographs (`beside`), or
blended with one (`behind`). The photographs are the two that come with scikit-learn, cropped at
random. Writes benchmarks/results/photographs.md and .json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, get_args

from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.output import RESULTS, demo, write
from benchmarks.quality.recipe import RUNS, Run, answer_missing, answered, shares, table
from foveate.prompts.sample import Sample, Span
from foveate_demo import questions
from foveate_demo.scenes import BUILT_IN, CELL, WIDTH
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.metrics import anls
from foveate_lab.eval.task_registry import TASKS, Task

PROFILES = "benchmarks/profiles"
METHODS = (
    "kvzip",
    f"recommended:profile={PROFILES}/recommended.safetensors",
    "snapkv:window=0.25",
)
BUDGETS = "10%"
THROUGH = 0.3
"""Weight of the photograph that shows through a page."""

Images = tuple[Image.Image, ...]


def photograph(r: Random, size: tuple[int, int]) -> Image.Image:
    """Return a random crop of one of the two photographs."""
    image = Image.fromarray(r.choice(load_sample_images().images))
    width, height = size
    left, top = r.randint(0, image.width - width), r.randint(0, image.height - height)
    return image.crop((left, top, left + width, top + height))


def beside(r: Random, page: Image.Image) -> Images:
    """Place the page between two photographs of its size."""
    return photograph(r, page.size), page, photograph(r, page.size)


def behind(r: Random, page: Image.Image) -> Images:
    """Blend the page with a photograph behind it."""
    return (Image.blend(page.convert("RGB"), photograph(r, page.size), THROUGH),)


def page_task(
    name: str, compose: Callable[[Random, Image.Image], Images], index: int, summary: str
) -> Task:
    """Build a task of questions about the page that is image ``index``."""

    def samples(count: int, seed: int) -> Iterator[Sample]:
        for number in range(count):
            r = Random(f"photographs/{seed}/{number}")  # both tasks have the same questions
            album = questions.document(r, (BUILT_IN,))
            question, (page,) = r.choice(album.questions), album.images
            rows = [row for _, row in question.evidence]
            boxes = [(0, row * CELL, WIDTH, (row + 1) * CELL) for row in rows]
            yield Sample(
                name=str(number),
                question=question.question,
                answers=(question.answer, question.value),
                images=compose(r, page.image),
                evidence=tuple(
                    Span(page.texts[row], index, box) for row, box in zip(rows, boxes, strict=True)
                ),
            )

    return Task(name, summary, samples, anls, longest=16)


ASKED = {
    "photographs_beside": page_task(
        "photographs_beside", beside, 1, "The page between two photographs of its size."
    ),
    "photograph_behind": page_task(
        "photograph_behind", behind, 0, "The page, with a photograph behind it."
    ),
}
TASKS.update(ASKED)


def section(name: str, protocol: Any, limit: int) -> list[str]:
    """Return a task's table, and how often the full cache is right."""
    run = Run("photographs", name, METHODS, limit, BUDGETS)
    folder = RUNS / protocol / name
    answer_missing(run, protocol, folder)
    rows = answered(folder)
    right = sum(int(row["score"]) for row in rows if row["spec"] == FULL)
    summary = f"{TASKS[name].summary} The full cache is right in {right} of {limit} questions."
    return [*table(name, shares(rows, [name])), summary, ""]


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=20, help="questions of each task")
    parser.add_argument("--protocol", choices=get_args(Protocol), default="query-agnostic")
    a = parser.parse_args()
    path = RESULTS / "photographs.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    data[a.protocol] = {name: section(name, a.protocol, a.limit) for name in ASKED}
    head = [
        "# Photographs",
        "",
        f"The {demo()}'s right answers, letter by letter, as shares of the full cache's, with 95 "
        "% intervals (bootstrap over questions, paired). It never saw a photograph and cannot be "
        "asked about one: the questions are about a page among photographs, or before one.",
        "",
    ]
    for protocol, of_task in data.items():
        head += [f"## {protocol.capitalize()}", ""]
        head += [line for task_lines in of_task.values() for line in task_lines]
    write("photographs", "\n".join(head), data)


if __name__ == "__main__":
    main()
