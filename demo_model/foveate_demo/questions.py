"""Questions about generated pictures, with their answers and the lines that contain these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from foveate_demo.scenes import (
    Scene,
    chart,
    form,
    owned,
    picture,
    receipt,
    sign,
    some_facts,
    table,
)
from foveate_demo.scenes.documents import Fonts
from foveate_demo.scenes.words import FIELDS, GOODS, OWNED, PEOPLE, PICTURES

ROWS = 12  # rows of a page in an album of one: about two hundred visual tokens


class Question(NamedTuple):
    """A question, its answer, and its ``evidence``: (image, row) of every line needed for it.

    The answer repeats the name of the field, "Room: 214": ``lead`` and ``value``.
    """

    question: str
    lead: str
    value: str
    evidence: tuple[tuple[int, int], ...]

    @property
    def answer(self) -> str:
        """The expected answer."""
        return f"{self.lead} {self.value}"


class Album(NamedTuple):
    """Images, and all possible questions about them."""

    images: tuple[Scene, ...]
    questions: tuple[Question, ...]


def _about(image: int, scene: Scene, begin: str = "What is the", lead: str = "") -> list[Question]:
    """Return one question for every fact of an image: "What is the room?"."""
    questions = []
    for name, value, row in scene.facts:
        what = _lower(name)
        words = f"price of {what}" if what in GOODS else what
        answer_lead = f"{lead}{what}:" if lead else f"{name}:"
        questions.append(Question(f"{begin} {words}?", answer_lead, value, ((image, row),)))
    return questions


def _named(image: int, scene: Scene, what: str) -> list[Question]:
    """Return one question for every fact of an image, each with the fact's name in the template
    ``what``: "What is the value of Monday?". The answer begins with this name.
    """
    return [
        Question(f"What is {what.format(name)}?", f"{name}:", value, ((image, row),))
        for name, value, row in scene.facts
    ]


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _album(images: tuple[Scene, ...], *questions: list[Question]) -> Album:
    return Album(images, tuple(question for several in questions for question in several))


def document(r: Random, fonts: Fonts) -> Album:
    """Draw one form, receipt, table or sign."""
    kind = r.choice(["form", "form", "form", "receipt", "sign", "table"])
    if kind == "table":
        field = r.choice(OWNED)
        page = table(r, fonts, r.sample(PEOPLE, r.randint(4, 8)), field, ROWS)
        return _album((page,), _named(0, page, f"the {_lower(field)} of {{}}"))
    if kind == "form":
        page = form(r, fonts, some_facts(r, r.randint(6, 10)), ROWS)
    elif kind == "receipt":
        page = receipt(r, fonts, r.randint(4, 7), ROWS)
    else:
        page = sign(r, fonts, some_facts(r, 3), ROWS)
    return _album((page,), _about(0, page))


def different_fields(r: Random, fonts: Fonts) -> Album:
    """Draw three images with four fields each, all different."""
    facts = some_facts(r, 12)
    rows = r.randint(5, 8)
    pages = tuple(form(r, fonts, facts[4 * i : 4 * i + 4], rows=rows) for i in range(3))
    return _album(pages, *(_about(i, page) for i, page in enumerate(pages)))


def same_fields(r: Random, fonts: Fonts, people: int = 3) -> Album:
    """Draw one image per person, all with the same four fields."""
    names, owners, rows = r.sample(OWNED, 4), r.sample(PEOPLE, people), r.randint(5, 8)
    pages = tuple(
        owned(r, fonts, p, [(n, FIELDS[n](r)) for n in r.sample(names, 4)], rows) for p in owners
    )
    return _album(pages, *(_named(i, page, "{}") for i, page in enumerate(pages)))


def mixed(r: Random, fonts: Fonts, images: int = 6) -> Album:
    """Draw a chart, a receipt, a table, and pages of people that the table does not list."""
    listed, field = r.sample(PEOPLE, r.randint(3, 6)), r.choice(OWNED)
    owners = r.sample([person for person in PEOPLE if person not in listed], images - 3)
    names = r.sample(OWNED, 4)
    pages = [
        (chart(r, fonts, r.randint(3, 6)), "the value of {}"),
        (receipt(r, fonts, r.randint(3, 6)), ""),
        (table(r, fonts, listed, field), f"the {_lower(field)} of {{}}"),
        *((owned(r, fonts, person, [(n, FIELDS[n](r)) for n in names]), "{}") for person in owners),
    ]
    r.shuffle(pages)
    return _album(
        tuple(page for page, _ in pages),
        *(
            _named(i, page, what) if what else _about(i, page)
            for i, (page, what) in enumerate(pages)
        ),
    )


def bars(r: Random, fonts: Fonts) -> Album:
    """Draw one bar chart."""
    page = chart(r, fonts, r.randint(4, 7))
    return _album((page,), _named(0, page, "the value of {}"))


def in_image(r: Random, fonts: Fonts, images: int = 3) -> Album:
    """Draw images with the same fields, and ask about an image by its number."""
    names, rows = r.sample(list(FIELDS), 3), r.randint(4, 7)
    pages = tuple(
        form(r, fonts, [(n, FIELDS[n](r)) for n in r.sample(names, 3)], rows) for _ in range(images)
    )
    return _album(
        pages,
        *(
            _about(i, page, f"In image {i + 1}, what is the", f"In image {i + 1}, ")
            for i, page in enumerate(pages)
        ),
    )


def which_image(r: Random, fonts: Fonts) -> Album:
    """Draw three images with three facts each, and ask for the image that has a fact."""
    facts = some_facts(r, 9)
    rows = r.randint(4, 7)
    pages = tuple(form(r, fonts, facts[3 * i : 3 * i + 3], rows) for i in range(3))
    return _album(pages, *(_where(i, page) for i, page in enumerate(pages)))


def _where(image: int, scene: Scene) -> list[Question]:
    questions = []
    for name, value, row in scene.facts:
        what = value if name == "Picture" else _lower(name)
        question = f"Which image shows {_a(what) if name == 'Picture' else f'the {what}'}?"
        lead = f"The {what} is in image"
        questions.append(Question(question, lead, str(image + 1), ((image, row),)))
    return questions


def _a(what: str) -> str:
    return what if what == "scissors" else f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def naming(r: Random, fonts: Fonts) -> Album:
    """Draw one image with a small picture and lines of text, and ask for the picture's name."""
    page = picture(r, fonts, r.choice(PICTURES), some_facts(r, r.randint(2, 4)))
    (_, name, row) = page.facts[-1]
    question = Question("What does the picture show?", "Picture:", name, ((0, row),))
    return _album((page,), [question])


def naming_among_three(r: Random, fonts: Fonts) -> Album:
    """Draw three images with a small picture each, and ask for the name of one by its number."""
    pages = _three_pictures(r, fonts)
    return _album(
        pages,
        [
            Question(
                f"What does the picture in image {i + 1} show?",
                f"In image {i + 1}, picture:",
                page.facts[-1][1],
                ((i, page.facts[-1][2]),),
            )
            for i, page in enumerate(pages)
        ],
    )


def which_picture(r: Random, fonts: Fonts) -> Album:
    """Draw three images with a small picture each, and ask for the image that shows a thing."""
    pages = _three_pictures(r, fonts)
    return _album(pages, *(_where(i, page)[-1:] for i, page in enumerate(pages)))


def _three_pictures(r: Random, fonts: Fonts) -> tuple[Scene, ...]:
    rows = r.randint(4, 7)
    return tuple(picture(r, fonts, name, some_facts(r, 1), rows) for name in r.sample(PICTURES, 3))


LONG: dict[str, Callable[[Random, Fonts], Album]] = {
    "eight people": partial(same_fields, people=8),
    "sixteen people": partial(same_fields, people=16),
    "thirty-two people": partial(same_fields, people=32),
    "in image N of sixteen": partial(in_image, images=16),
    "a chart, a receipt, a table and thirteen people": partial(mixed, images=16),
}
"""Kinds of albums with many pages that look alike."""

KINDS: dict[str, Callable[[Random, Fonts], Album]] = {
    "document": document,
    "three images, different fields": different_fields,
    "three images, same fields": same_fields,
    "in image N": in_image,
    "which image has the field": which_image,
    "chart": bars,
    "name the picture": naming,
    "name the picture in image N": naming_among_three,
    "which image shows the picture": which_picture,
}
