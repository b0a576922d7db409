"""Bar charts: one bar per row, with its value on the axis."""

from __future__ import annotations

import colorsys
from random import Random

from foveate_demo.scenes.documents import Fonts, Scene, scene
from foveate_demo.scenes.drawing import CELL, WIDTH, Page, any_style, blend
from foveate_demo.scenes.words import CITIES, DAYS, GOODS, MONTHS, PEOPLE

SUBJECTS = (CITIES, DAYS, MONTHS, PEOPLE, [good.capitalize() for good in GOODS])


def chart(r: Random, fonts: Fonts, bars: int) -> Scene:
    """Draw horizontal bars, multiples of 5 on an axis from 0 to 100. The text of a bar's row is
    "Monday: 45", that of the axis empty.
    """
    style = any_style(r, fonts)
    style = style._replace(size=min(style.size, 15))
    page = Page(bars + 2, style, r)
    names = r.sample(r.choice(SUBJECTS), bars)
    left = max(page.width(name) for name in names) + r.randint(10, 24)
    scale = (WIDTH - r.randint(14, 60) - left) / 100
    title = r.random() < 0.5
    first = 1 if title else r.randint(0, 1)
    if title:
        page.line(0, r.choice(["Sales", "Visitors", "Orders", "Report", "Score"]))
    end = first + bars
    for tick in (0, 50, 100):
        x = left + tick * scale
        ink = blend(style.ink, style.paper, 0.5) if tick else style.ink
        page.draw.line((x, first * CELL, x, end * CELL + 3), fill=ink)
        page.text(x - page.width(str(tick)) / 2, end * CELL + CELL / 2, str(tick))
    colour = _colour(r)
    facts = []
    for row, name in enumerate(names, first):
        value, thick = 5 * r.randint(1, 20), r.randint(5, 9)
        y = row * CELL + CELL // 2
        page.draw.rectangle((left, y - thick, left + value * scale, y + thick), fill=colour)
        page.write(row, f"{name}: {value}", (name, left - 6 - page.width(name)))
        facts.append((name, str(value), row))
        colour = colour if r.random() < 0.6 else _colour(r)
    return scene(page, facts)


def _colour(r: Random) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(r.random(), r.uniform(0.4, 0.9), r.uniform(0.45, 0.8))
    return int(255 * red), int(255 * green), int(255 * blue)
