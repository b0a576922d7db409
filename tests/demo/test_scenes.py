"""Generated pictures follow from their seed, and show what they say where they say it."""

from pathlib import Path
from random import Random

import font_roboto
import font_source_serif_pro
import numpy as np
import pytest

from foveate_demo.scenes import (
    CELL,
    SLOTS,
    chart,
    form,
    owned,
    picture,
    receipt,
    sign,
    some_facts,
    table,
)
from foveate_demo.scenes.words import PICTURES

FONTS = tuple(
    Path(package.__file__).parent / "files" / name
    for package, name in [
        (font_roboto, "Roboto-Regular.ttf"),
        (font_source_serif_pro, "SourceSerifPro-Regular.ttf"),
    ]
)
SCENES = {
    "form": lambda r: form(r, FONTS, some_facts(r, 6)),
    "form of 12 rows": lambda r: form(r, FONTS, some_facts(r, 6), rows=12),
    "owned": lambda r: owned(r, FONTS, "Bruno", some_facts(r, 4, ["Room", "City", "Age", "Seat"])),
    "receipt": lambda r: receipt(r, FONTS, 5),
    "sign": lambda r: sign(r, FONTS, some_facts(r, 2)),
    "chart": lambda r: chart(r, FONTS, 5),
    "table": lambda r: table(r, FONTS, ["Anna", "Bruno", "Carl"], "Room"),
    "picture": lambda r: picture(r, FONTS, "anchor", some_facts(r, 2)),
    "picture of 7 rows": lambda r: picture(r, FONTS, "bell", some_facts(r, 1), rows=7),
}
every_kind = pytest.mark.parametrize("kind", SCENES)


def pictures(kind, count=8):
    return [SCENES[kind](Random(f"{kind}/{seed}")) for seed in range(count)]


@every_kind
def test_the_same_seed_gives_the_same_picture_and_another_one_another(kind):
    once, again = pictures(kind, 3), pictures(kind, 3)
    for a, b in zip(once, again, strict=True):
        assert a.image.tobytes() == b.image.tobytes()
        assert a[1:] == b[1:]
    assert once[0].texts != once[1].texts


@every_kind
def test_a_row_of_cells_says_one_thing_and_facts_stand_where_they_are_said_to(kind):
    for scene in pictures(kind):
        assert scene.image.size == (SLOTS * CELL, len(scene.texts) * CELL)
        assert len(scene.where) == len(scene.texts)
        for name, value, row in scene.facts:
            assert scene.texts[row] == f"{name}: {value}"
        assert len({row for *_, row in scene.facts}) == len(scene.facts) > 0


@every_kind
def test_characters_are_drawn_where_they_are_noted_and_inside_the_picture(kind):
    for scene in pictures(kind):
        pixels = np.asarray(scene.image, dtype=float).mean(-1)
        for row, (text, where) in enumerate(zip(scene.texts, scene.where, strict=True)):
            band = pixels[row * CELL : (row + 1) * CELL]
            for i, x in where.items():
                assert 0 <= x <= SLOTS * CELL
                if text[i].isalnum() and not text.startswith("Picture: "):
                    # ink differs from the paper around it by more than noise does; the name
                    # of a picture is noted on it, without letters
                    near = band[:, max(0, int(x) - 7) : int(x) + 8]
                    assert near.max() - near.min() > 50
            assert {i for i in range(len(text)) if text[i] not in ": "} >= {
                i for i in where if text[i] not in ": "
            }


def test_the_length_of_a_bar_is_its_value():
    for scene in pictures("chart"):
        pixels = np.asarray(scene.image, dtype=float)
        found = []
        for _, value, row in scene.facts:
            start = int(max(scene.where[row].values())) + 15  # just inside the bar
            middle = pixels[row * CELL + CELL // 2 - 3 : row * CELL + CELL // 2 + 4, start:]
            same = np.abs(middle.mean(0) - middle[:, :2].mean((0, 1))).sum(-1) < 60
            found.append((int(value), start + np.append(same, False).argmin()))
        values, ends = np.array(found).T
        slope, start = np.polyfit(values, ends, 1)
        assert np.abs(start + slope * values - ends).max() < 5 * slope  # less than a step of 5


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_drawn_around_the_row_that_names_it(name):
    for seed in range(3):
        scene = picture(Random(seed), FONTS, name)
        (_, said, row), *others = scene.facts
        assert (said, others) == (name, [])
        pixels = np.asarray(scene.image, dtype=float).mean(-1)
        rows = pixels.reshape(len(scene.texts), -1)
        ink = (np.abs(rows - np.median(pixels)) > 30).sum(1)  # paper: noise, and a slope of 14
        assert ink[row] > 20
        assert ink[row] >= ink.max() / 3
        assert all(text == "" for i, text in enumerate(scene.texts) if i != row)


def test_a_picture_that_does_not_exist_is_refused():
    with pytest.raises(KeyError):
        picture(Random(0), FONTS, "unicorn")
