"""Questions about generated pictures, with the answer and the places where it stands."""

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

ROWS = 12  # of a page alone: about two hundred visual tokens


class Question(NamedTuple):
    """What is asked. ``evidence``: (image, row) of every line that is needed.

    The answer repeats what is asked for, "Room: 214": ``lead`` and ``value``.
    """

    question: str
    lead: str
    value: str
    evidence: tuple[tuple[int, int], ...]

    @property
    def answer(self) -> str:
        """What the model is to say."""
        return f"{self.lead} {self.value}"


class Album(NamedTuple):
    """Some images, and all that can be asked about them."""

    images: tuple[Scene, ...]
    questions: tuple[Question, ...]


def _about(image: int, scene: Scene, begin: str = "What is the", lead: str = "") -> list[Question]:
    """One question for every fact of an image."""
    asked = []
    for name, value, row in scene.facts:
        what = _lower(name)
        words = f"price of {what}" if what in GOODS else what
        said = f"{lead}{what}:" if lead else f"{name}:"
        asked.append(Question(f"{begin} {words}?", said, value, ((image, row),)))
    return asked


def _named(image: int, scene: Scene, what: str) -> list[Question]:
    """The same where the answer begins with the fact's name: "What is the value of Monday?"."""
    return [
        Question(f"What is {what.format(name)}?", f"{name}:", value, ((image, row),))
        for name, value, row in scene.facts
    ]


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _album(images: tuple[Scene, ...], *questions: list[Question]) -> Album:
    return Album(images, tuple(one for several in questions for one in several))


def document(r: Random, fonts: Fonts) -> Album:
    """One form, receipt, table or sign."""
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
    """Three images with four fields each, all different."""
    facts = some_facts(r, 12)
    rows = r.randint(5, 8)
    pages = tuple(form(r, fonts, facts[4 * i : 4 * i + 4], rows=rows) for i in range(3))
    return _album(pages, *(_about(i, page) for i, page in enumerate(pages)))


def same_fields(r: Random, fonts: Fonts, people: int = 3) -> Album:
    """Images with the same four fields, of three people or more."""
    names, owners, rows = r.sample(OWNED, 4), r.sample(PEOPLE, people), r.randint(5, 8)
    pages = tuple(
        owned(r, fonts, p, [(n, FIELDS[n](r)) for n in r.sample(names, 4)], rows) for p in owners
    )
    return _album(pages, *(_named(i, page, "{}") for i, page in enumerate(pages)))


def mixed(r: Random, fonts: Fonts, images: int = 6) -> Album:
    """A chart, a receipt, a table, and pages of people that the table does not list."""
    listed, field = r.sample(PEOPLE, r.randint(3, 6)), r.choice(OWNED)
    owners = r.sample([one for one in PEOPLE if one not in listed], images - 3)
    names = r.sample(OWNED, 4)
    pages = [
        (chart(r, fonts, r.randint(3, 6)), "the value of {}"),
        (receipt(r, fonts, r.randint(3, 6)), ""),
        (table(r, fonts, listed, field), f"the {_lower(field)} of {{}}"),
        *((owned(r, fonts, one, [(n, FIELDS[n](r)) for n in names]), "{}") for one in owners),
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
    """A bar chart."""
    page = chart(r, fonts, r.randint(4, 7))
    return _album((page,), _named(0, page, "the value of {}"))


def in_image(r: Random, fonts: Fonts, images: int = 3) -> Album:
    """Images with the same fields; the question says in which one to look."""
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
    """Three images with three things each that only it has."""
    facts = some_facts(r, 9)
    rows = r.randint(4, 7)
    pages = tuple(form(r, fonts, facts[3 * i : 3 * i + 3], rows) for i in range(3))
    return _album(pages, *(_where(i, page) for i, page in enumerate(pages)))


def _where(image: int, scene: Scene) -> list[Question]:
    asked = []
    for name, value, row in scene.facts:
        what = value if name == "Picture" else _lower(name)
        question = f"Which image shows {_a(what) if name == 'Picture' else f'the {what}'}?"
        lead = f"The {what} is in image"
        asked.append(Question(question, lead, str(image + 1), ((image, row),)))
    return asked


def _a(what: str) -> str:
    return what if what == "scissors" else f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def naming(r: Random, fonts: Fonts) -> Album:
    """One image with a small picture and some lines of text; the picture is asked about."""
    page = picture(r, fonts, r.choice(PICTURES), some_facts(r, r.randint(2, 4)))
    (_, name, row) = page.facts[-1]
    shown = Question("What does the picture show?", "Picture:", name, ((0, row),))
    return _album((page,), [shown])


def naming_among_three(r: Random, fonts: Fonts) -> Album:
    """Three images with a small picture each."""
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
    """Three images with a small picture each; which of them shows a given thing."""
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
"""Albums of many pages that look alike."""

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
