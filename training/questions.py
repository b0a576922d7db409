"""Questions about generated pictures, with the answer and the places where it stands."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from foveate.demo.scenes import Scene, chart, form, owned, receipt, sign, some_facts
from foveate.demo.scenes.words import FIELDS, GOODS, OWNED, PEOPLE
from training.data import Fonts


class Question(NamedTuple):
    """What is asked about some images. ``evidence``: (image, row) of every line that is needed."""

    kind: str
    images: tuple[Scene, ...]
    question: str
    lead: str  # what the answer begins with
    answer: str
    evidence: tuple[tuple[int, int], ...]


def document(r: Random, fonts: Fonts) -> Question:
    """One document, one of its fields."""
    kind = r.choice(["form", "form", "form", "receipt", "sign"])
    if kind == "form":
        scene = form(r, fonts, some_facts(r, r.randint(6, 10)), rows=12)
    elif kind == "receipt":
        scene = receipt(r, fonts, r.randint(4, 7))
    else:
        scene = sign(r, fonts, some_facts(r, 3))
    return _about(r, "document", (scene,), 0)


def _about(r: Random, kind: str, scenes: tuple[Scene, ...], image: int) -> Question:
    name, value, row = r.choice(scenes[image].facts)
    what = _lower(name)
    if what in GOODS:
        what = f"price of {what}"
    return Question(kind, scenes, f"What is the {what}?", f"{name}:", value, ((image, row),))


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def different_fields(r: Random, fonts: Fonts) -> Question:
    """Three images with four fields each, all different."""
    facts = some_facts(r, 12)
    scenes = tuple(form(r, fonts, facts[4 * i : 4 * i + 4], rows=6) for i in range(3))
    return _about(r, "three images, different fields", scenes, r.randrange(3))


def same_fields(r: Random, fonts: Fonts) -> Question:
    """Three images with the same four fields, of three people."""
    names = r.sample(OWNED, 4)
    people = r.sample(PEOPLE, 3)
    scenes = tuple(
        owned(r, fonts, p, [(n, FIELDS[n](r)) for n in r.sample(names, 4)], rows=6) for p in people
    )
    image = r.randrange(3)
    name, value, row = r.choice(scenes[image].facts)
    return Question("three images, same fields", scenes, f"What is {name}?", f"{name}:", value,
                    ((image, row),))  # fmt: skip


def bars(r: Random, fonts: Fonts) -> Question:
    """A bar chart, one of its bars."""
    scene = chart(r, fonts, r.randint(4, 7))
    name, value, row = r.choice(scene.facts)
    return Question("chart", (scene,), f"What is the value of {name}?", f"{name}:", value,
                    ((0, row),))  # fmt: skip


def in_image(r: Random, fonts: Fonts) -> Question:
    """Three images with the same fields; the question says in which one to look."""
    names = r.sample(list(FIELDS), 3)
    scenes = tuple(
        form(r, fonts, [(n, FIELDS[n](r)) for n in r.sample(names, 3)], rows=5) for _ in range(3)
    )
    image = r.randrange(3)
    name, value, row = r.choice(scenes[image].facts)
    what = _lower(name)
    return Question("in image N", scenes, f"In image {image + 1}, what is the {what}?",
                    f"In image {image + 1}, {what}:", value, ((image, row),))  # fmt: skip


def which_image(r: Random, fonts: Fonts) -> Question:
    """Three images with one thing each that only it has."""
    facts = some_facts(r, 9)
    scenes = tuple(form(r, fonts, facts[3 * i : 3 * i + 3], rows=5) for i in range(3))
    image = r.randrange(3)
    name, _, row = r.choice(scenes[image].facts)
    what = _lower(name)
    return Question("which image", scenes, f"Which image shows the {what}?",
                    f"The {what} is in image", str(image + 1), ((image, row),))  # fmt: skip


KINDS: dict[str, Callable[[Random, Fonts], Question]] = {
    "document": document,
    "different": different_fields,
    "same": same_fields,
    "chart": bars,
    "in image": in_image,
    "which image": which_image,
}


def prompt(q: Question, image: str = "<image>") -> str:
    """The text around the images."""
    if len(q.images) == 1:
        before = f"{image}\n"
    else:
        before = "".join(f"Image {i}:\n{image}\n" for i in range(1, len(q.images) + 1))
    return f"{before}Question: {q.question}\nAnswer: {q.lead}"
