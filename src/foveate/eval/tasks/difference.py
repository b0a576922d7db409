"""Spot the difference: the same page twice, and one value on it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from foveate.demo.scenes import BUILT_IN, CELL, WIDTH, Scene, form, some_facts
from foveate.demo.scenes.documents import Facts
from foveate.demo.scenes.words import FIELDS
from foveate.eval.metrics import says
from foveate.eval.sample import Sample, Span, task

FACTS = 4
NAMES = sorted(set(FIELDS) - {"Date"})  # "due date" would say it, too


@task("spot_the_difference", metric=says)
def spot_the_difference(count: int, seed: int) -> Iterator[Sample]:
    """Two drawings of one form, one value changed; which field is it?"""
    for number in range(count):
        r = Random(f"spot_the_difference/{seed}/{number}")
        facts = list(some_facts(r, FACTS, NAMES))
        place = r.randrange(FACTS)
        name, value = facts[place]
        other = _another(r, name, value)
        changed = [*facts[:place], (name, other), *facts[place + 1 :]]
        pages = _alike(r, (facts, changed))
        yield Sample(
            name=str(number),
            question="The two images differ in one line. Which field has changed?",
            answers=(name,),
            images=tuple(page.image for page in pages),
            evidence=tuple(_line(page, i, place) for i, page in enumerate(pages)),
            facts={"values": (value, other)},
        )


def _alike(r: Random, both: Sequence[Facts]) -> list[Scene]:
    """One page of each, drawn in the same way; again in another, where the changed line moves
    others (it may be too long for a column, for example).
    """
    while True:
        way = r.getrandbits(32)
        pages = [form(Random(way), (BUILT_IN,), facts, rows=6) for facts in both]
        rows = range(len(pages[0].says))
        if sum(pages[0].where[row] != pages[1].where[row] for row in rows) <= 1:
            return pages


def _line(page: Scene, image: int, place: int) -> Span:
    row = page.facts[place][2]
    return Span(page.says[row], image, (0, row * CELL, WIDTH, (row + 1) * CELL))


def _another(r: Random, name: str, value: str) -> str:
    """Another value of the field."""
    while (other := FIELDS[name](r)) == value:
        continue
    return other
