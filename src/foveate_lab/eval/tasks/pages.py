"""Many drawn pages with a question about one of them.

The page is at a chosen depth among the pages, or a chosen number of pages follow it. All pages have
the same four fields, each for another person, so only that page has the answer. Cells take turns:
sample 0 has the first number of pages and the first depth, sample 1 the first number and the second
depth.
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

MOST = len(PEOPLE)  # pages: one per person


@task("pages", metric=anls)
def pages(
    count: int, seed: int, *, pages: str | int = "4/6/8", place: str | int = "0/33/67/100"
) -> Iterator[Sample]:
    """Answer from one of several forms with the same fields, at a depth in percent."""
    depths = whole_numbers("place", place, 100)
    cells = [(n, depth) for n in whole_numbers("pages", pages, MOST, least=2) for depth in depths]
    for number, (n, depth) in enumerate(islice(cycle(cells), count)):
        r = Random(f"pages/{seed}/{number}")
        question = _question_about(r, number, n, round((n - 1) * depth / 100))
        yield replace(question, labels={"pages": n, "place": depth})


@task("passing_pages", metric=anls)
def passing_pages(
    count: int, seed: int, *, pages: int = 8, distance: str | int = "0/1/2/3/5/7"
) -> Iterator[Sample]:
    """Answer from one of several forms, one a frame, after which others follow."""
    distances = whole_numbers("distance", distance, MOST - 1)
    (n,) = whole_numbers("pages", pages, MOST, least=2)
    if max(distances) >= n:
        raise InvalidParameter(
            f"distance={distance!r}: after one of {n} pages come {n - 1} at most. Raise pages."
        )
    for number, after in enumerate(islice(cycle(distances), count)):
        question = _question_about(
            Random(f"passing_pages/{seed}/{number}"), number, n, n - 1 - after
        )
        yield replace(question, labels={"distance": after})


def _question_about(r: Random, number: int, people: int, page: int) -> Sample:
    """Build a question about one of the pages, counted from 0."""
    album = same_fields(r, FONTS, people)
    about = [question for question in album.questions if question.evidence[0][0] == page]
    return sample_of(str(number), album, r.choice(about))
