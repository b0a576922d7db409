"""Many drawn pages of which one is asked for: at every place among so many of them, or some pages
after it has passed.

All pages have the same four fields, of a person each, so the answer stands nowhere but on the page
asked for, and what is alike stands on all the others. Cells take turns: sample 0 is of the first
number of pages and the first place, sample 1 of the first number and the second place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from random import Random

from foveate.errors import InvalidParameter
from foveate.prompts.sample import Sample
from foveate_demo.questions import same_fields
from foveate_demo.scenes.words import PEOPLE
from foveate_lab.eval.benchmarks.options import whole_numbers
from foveate_lab.eval.metrics import anls
from foveate_lab.eval.task_registry import task
from foveate_lab.eval.tasks.drawn import FONTS, sample_of

MOST = len(PEOPLE)  # pages: a person each


@task("pages", metric=anls)
def pages(
    count: int, seed: int, *, pages: str | int = "4/6/8", place: str | int = "0/33/67/100"
) -> Iterator[Sample]:
    """So many forms with the same fields; the one asked for stands so many percent of the way."""
    places = whole_numbers("place", place, 100)
    cells = [(n, at) for n in whole_numbers("pages", pages, MOST, least=2) for at in places]
    for number, (n, at) in enumerate(islice(cycle(cells), count)):
        r = Random(f"pages/{seed}/{number}")
        question = _asked(r, number, n, round((n - 1) * at / 100))
        yield replace(question, labels={"pages": n, "place": at})


@task("passing_pages", metric=anls)
def passing_pages(
    count: int, seed: int, *, pages: int = 8, distance: str | int = "0/1/2/3/5/7"
) -> Iterator[Sample]:
    """Forms pass by, one a frame; the one asked for had so many others after it."""
    distances = whole_numbers("distance", distance, MOST - 1)
    (n,) = whole_numbers("pages", pages, MOST, least=2)
    if max(distances) >= n:
        raise InvalidParameter(
            f"distance={distance!r}: after one of {n} pages come {n - 1} at most. Raise pages."
        )
    for number, after in enumerate(islice(cycle(distances), count)):
        question = _asked(Random(f"passing_pages/{seed}/{number}"), number, n, n - 1 - after)
        yield replace(question, labels={"distance": after})


def _asked(r: Random, number: int, people: int, page: int) -> Sample:
    """A question about that one of the pages, counted from 0."""
    album = same_fields(r, FONTS, people)
    about = [one for one in album.questions if one.evidence[0][0] == page]
    return sample_of(str(number), album, r.choice(about))
