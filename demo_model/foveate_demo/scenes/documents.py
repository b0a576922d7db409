"""Forms, receipts, tables, notes and signs: pages with one text per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from PIL import Image

from foveate_demo.scenes.drawing import CELL, WIDTH, Page, any_style, blend
from foveate_demo.scenes.words import FIELDS, GOODS, TITLES, price

Fonts = tuple[Path, ...]
Facts = Sequence[tuple[str, str]]


class Scene(NamedTuple):
    """An image and its ``texts``: one for every row of cells, empty if the row is blank.

    ``facts`` are the subjects of questions: (name, value, row). ``where`` has, for every row, the
    horizontal middle of each drawn character by its index in the text, in pixels.
    """

    image: Image.Image
    texts: tuple[str, ...]
    facts: tuple[tuple[str, str, int], ...]
    where: tuple[dict[int, int | float], ...]


def scene(page: Page, facts: Iterable[tuple[str, str, int]]) -> Scene:
    """Finish a page, and return it with these facts."""
    return Scene(page.finished(), tuple(page.texts), tuple(facts), tuple(page.where))


def some_facts(r: Random, count: int, names: Sequence[str] = tuple(FIELDS)) -> Facts:
    """Draw ``count`` different fields among ``names``, each with a value of its kind."""
    return [(name, FIELDS[name](r)) for name in r.sample(list(names), count)]


def form(r: Random, fonts: Fonts, facts: Facts, rows: int | None = None) -> Scene:
    """Draw a form: sometimes a title, and a line "Due date: 14 March" for every fact.

    Name and value are separated by a colon, a gap, dots or a column line; the row's text has a
    colon in any case.
    """
    count = rows or len(facts) + r.randint(0, 2)
    page = Page(count, any_style(r, fonts), r)
    fact_rows = sorted(r.sample(range(count), len(facts)))
    if fact_rows[0] > 0 and r.random() < 0.7:
        page.line(r.randrange(fact_rows[0]), r.choice(TITLES))
    left, gap = r.randint(4, 50), r.choice(["colon", "colon", "colon", "gap", "dots", "column"])
    widest = max(page.width(name) for name, _ in facts)
    column = left + widest + r.randint(8, 40)
    if column + max(page.width(value) for _, value in facts) > WIDTH - 4:
        gap = "colon"
    ruled = r.random() < 0.3
    for row, (name, value) in zip(fact_rows, facts, strict=True):
        if gap == "colon":
            page.line(row, f"{name}: {value}", left if r.random() < 0.8 else None)
        else:
            page.write(row, f"{name}: {value}", (name, left), (value, column))
            if gap == "dots":
                _dots(page, row, left + page.width(name) + 4, column - 5)
        if ruled:
            page.rule((row + 1) * CELL - 1, left - 3)
    if gap == "column":
        top, end = fact_rows[0] * CELL, (fact_rows[-1] + 1) * CELL
        page.draw.line((column - 5, top, column - 5, end), fill=page.style.ink)
    if r.random() < 0.2:
        edge = blend(page.style.ink, page.style.paper, 0.7)
        page.draw.rectangle((0, 0, WIDTH - 1, page.image.height - 1), outline=edge)
    located = tuple((name, value, row) for row, (name, value) in zip(fact_rows, facts, strict=True))
    return scene(page, located)


def _dots(page: Page, row: int, left: int | float, right: int | float) -> None:
    y = page.middle(row)
    for x in range(int(left), int(right), 5):
        page.text(x, y, ".")


def table(
    r: Random, fonts: Fonts, people: Sequence[str], field: str, rows: int | None = None
) -> Scene:
    """Draw a table of names and values of one field: "Bruno 214" under "Name Room"."""
    facts = [(person, FIELDS[field](r)) for person in people]
    lines = [("Name", field), *facts]
    page = Page(rows or len(lines) + r.randint(0, 2), any_style(r, fonts), r)
    first = r.randint(0, len(page.texts) - len(lines))
    left = r.randint(4, 60)
    column = left + max(page.width(name) for name, _ in lines) + r.randint(14, 90)
    column = min(column, WIDTH - 4 - max(page.width(value) for _, value in lines))
    framed = r.random() < 0.5
    for row, (name, value) in enumerate(lines, first):
        page.write(row, f"{name}: {value}", (name, left), (value, column))
        if framed or row == first:
            page.rule((row + 1) * CELL - 1, left - 3, WIDTH - 4)
    if framed:
        page.draw.line(
            (column - 6, first * CELL, column - 6, (first + len(lines)) * CELL - 1),
            fill=page.style.ink,
        )
    return scene(page, [(name, value, row) for row, (name, value) in enumerate(facts, first + 1)])


def receipt(r: Random, fonts: Fonts, items: int, rows: int | None = None) -> Scene:
    """Draw a receipt: goods on the left, prices on the right, and a total."""
    facts = [(good.capitalize(), price(r)) for good in r.sample(GOODS, items)]
    facts.append(("Total", price(r)))
    page = Page(rows or items + r.randint(2, 4), any_style(r, fonts), r)
    page.line(0, r.choice(["Receipt", "Invoice", "Price list", "Market", "Shop"]))
    first = page.image.height // CELL - len(facts)
    left, right = r.randint(3, 40), WIDTH - r.randint(4, 120)
    located = []
    for row, (name, value) in enumerate(facts, first):
        at = max(right - page.width(value), left + page.width(name) + 12)
        page.write(row, f"{name}: {value}", (name, left), (value, at))
        located.append((name, value, row))
    page.rule((first + items) * CELL, left, right)
    return scene(page, located)


def sign(r: Random, fonts: Fonts, facts: Facts, rows: int | None = None) -> Scene:
    """Draw a sign with few, large words: "Room 214"; the row's text has a colon."""
    style = any_style(r, fonts)._replace(size=r.randint(17, 22), jitter=1)
    page = Page(rows or len(facts) + r.randint(0, 2), style, r)
    first = r.randint(0, page.image.height // CELL - len(facts))
    located = []
    for row, (name, value) in enumerate(facts, first):
        x, wide = r.uniform(4, WIDTH / 2), page.width(f"{name} ")
        x = max(4, min(x, WIDTH - 4 - wide - page.width(value)))
        page.write(row, f"{name}: {value}", (name, x), (value, x + wide))
        located.append((name, value, row))
    return scene(page, located)


def owned(r: Random, fonts: Fonts, owner: str, facts: Facts, rows: int | None = None) -> Scene:
    """Draw a form with lines such as "Bruno's room: 214"."""
    return form(r, fonts, [(f"{owner}'s {name.lower()}", value) for name, value in facts], rows)
