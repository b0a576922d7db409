"""Prompts to measure a profile on where none are given: drawn pages, or a manual with facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from PIL import Image

from foveate.eval.tasks.text_needle import manual
from foveate_demo import questions
from foveate_demo.questions import Album
from foveate_demo.scenes import BUILT_IN
from foveate_demo.scenes.documents import Fonts
from foveate_demo.scenes.words import FIELDS, PEOPLE

SAMPLES = 48
KINDS: tuple[Callable[[Random, Fonts], Album], ...] = (
    questions.document,
    questions.different_fields,
    questions.bars,
    partial(questions.same_fields, people=4),
    questions.in_image,
    partial(questions.same_fields, people=6),
    partial(questions.same_fields, people=8),
    questions.bars,
)
WORDS = (100, 1200)  # of a text


class Context(NamedTuple):
    """A text, with the images that stand before it."""

    text: str
    images: Sequence[Image.Image] = ()


def contexts(sees: bool, samples: int) -> Iterator[Context]:
    """Prompts of many kinds and lengths, with a question each: pages for a model that sees."""
    for number in range(samples):
        r = Random(f"contexts/{number}")
        yield _pages(r, number) if sees else _text(r)


def _pages(r: Random, number: int) -> Context:
    album = KINDS[number % len(KINDS)](r, (BUILT_IN,))
    asked = r.choice(album.questions)
    return Context(asked.question, [page.image for page in album.images])


def _text(r: Random) -> Context:
    """A piece of Python's manual among whose words some facts stand."""
    count = r.randint(*WORDS)
    start = r.randrange(len(manual()) - count)
    words = list(manual()[start : start + count])
    facts = [(r.choice(PEOPLE), r.choice(list(FIELDS))) for _ in range(1 + count // 200)]
    for who, what in facts:
        line = f"\n{who}'s {what.lower()}: {FIELDS[what](r)}\n"
        words.insert(r.randint(0, len(words)), line)
    who, what = r.choice(facts)
    return Context(f"{' '.join(words)}\n\nWhat is {who}'s {what.lower()}?")
