"""Where patches stand on the picture of what was kept, and how clear they are drawn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.models.token_grids import Grid, ImageTokens, image_tokens
from foveate.pictures import kept_picture
from foveate.pictures.kept_picture import canvas, lit
from foveate.pictures.views import views_of
from tests.models.eyes import mask
from tests.models.published import EYES

from .hostile import SPECS

SHAPES = {"wide": (640, 160), "tall": (150, 600), "small": (40, 30)}


def light(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L")).astype(float)


def tokens(grid: Grid) -> ImageTokens:
    return ImageTokens(grid.indices, (grid,))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", EYES)
def test_a_white_square_is_the_patch_that_the_picture_marks(name: str, shape: str) -> None:
    """The tokens that see most of the square are held, and no other: what is clear on the picture
    lies where the square is.
    """
    eye, size = EYES[name], SHAPES[shape]
    side = min(size) // 3
    left, top = (size[0] - side) // 2, (size[1] - side) // 2 + side // 2
    square = Image.new("RGB", size)
    square.paste("white", (left, top, left + side, top + side))
    inputs, bright = eye.sees(square)
    vision = mask(eye, inputs, len(bright))
    reader = SimpleNamespace(image_processor=eye.processor)
    (found,) = image_tokens(vision, inputs, [size], eye.config, reader) or []
    sees = torch.zeros(len(vision))
    sees[vision] = bright.nan_to_num()
    for grid in found.grids:
        mine = sees[list(grid.indices)]
        held = torch.zeros(len(vision))
        held[list(grid.indices)] = (mine >= 0.5 * mine.max()).float()
        drawn = light(lit(Image.new("RGB", size, "white"), [grid], held, (400, 400)))
        rows, columns = np.nonzero(drawn == 255)
        box, seen = canvas(square, [grid]), grid.on(size)
        for at, start, edge, cells in (
            (columns, 0, left, grid.columns),
            (rows, 1, top, grid.rows),
        ):
            low, high = box[start], box[start + 2]
            middle = low + (at.min() + at.max() + 1) / 800 * (high - low)
            cell = (seen[start + 2] - seen[start]) / cells
            assert abs(middle - (edge + side / 2)) <= 0.51 * cell + (high - low) / 400


def test_cells_are_as_clear_as_they_are_held() -> None:
    white = Image.new("RGB", (40, 20), "white")
    share = torch.tensor([0.5, 0.0, 1.0, 0.1, 0.75])
    cells = light(lit(white, [Grid(1, 4, (1, 2, 3, 4))], share, white.size)).reshape(20, 4, 10)
    assert (cells == cells[:1, :, :1]).all()  # one brightness for a cell
    fog, clear, tenth, most = cells[0, :, 0]
    assert clear == 255
    assert fog < tenth < most < clear
    assert tenth - fog > 20  # a tenth of the heads can be told from none
    black = light(lit(Image.new("RGB", (40, 20)), [Grid(1, 1, (1,))], share, white.size))
    assert fog - black.max() > 70  # and what no head holds can still be read


def test_cells_follow_each_other_row_by_row() -> None:
    white, share = Image.new("RGB", (30, 20), "white"), torch.arange(6) / 5
    cells = light(lit(white, [Grid(2, 3, (0, 1, 2, 3, 4, 5))], share, white.size))[5::10, 5::10]
    assert cells.flatten().tolist() == sorted(set(cells.flatten().tolist()))


def test_what_no_token_sees_is_hatched_and_padding_is_grey() -> None:
    image, held = Image.new("RGB", (40, 20), "red"), torch.ones(1)
    cut = np.asarray(lit(image, [Grid(1, 1, (0,), (10.0, 0.0, 30.0, 20.0))], held, (80, 40)))
    assert (cut[:, 20:60] == (255, 0, 0)).all()
    for beside in (cut[:, :20], cut[:, 60:]):
        assert len(np.unique(beside.reshape(-1, 3), axis=0)) == 2
        assert not (beside == (255, 0, 0)).all(-1).any()
    padded = np.asarray(lit(image, [Grid(1, 1, (0,), (0.0, -10.0, 40.0, 30.0))], held, (40, 40)))
    assert (padded[10:30] == (255, 0, 0)).all()
    assert (padded[:10] == 128).all()
    assert (padded[30:] == 128).all()


def test_the_page_has_a_row_for_every_method() -> None:
    images = [Image.new("RGB", (384, h), "white") for h in (96, 144)]
    where = [tokens(Grid(1, 2, (0, 1))), tokens(Grid(1, 1, (2,)))]
    rows = [(f"method {i}", "answer", torch.full((3,), i / 3)) for i in range(4)]
    heights = {n: kept_picture(images, where, rows[:n]).height for n in (1, 2, 4)}
    assert heights[2] - heights[1] == (heights[4] - heights[2]) / 2 > 144 * 400 / 384
    page = light(kept_picture(images, where, rows))
    bands = [band.mean() for band in np.array_split(page[:-100], 4)]
    assert bands == sorted(bands)


def test_lines_of_a_text_are_drawn_on_one_image_that_is_hatched_between_them() -> None:
    image, share = Image.new("RGB", (40, 40), "red"), torch.tensor([1.0, 0.0, 1.0])
    lines = (Grid(1, 2, (0, 1), (0, 0, 40, 10)), Grid(1, 1, (2,), (20, 30, 40, 40)))
    drawn = np.asarray(lit(image, lines, share, image.size))
    red = (drawn == (255, 0, 0)).all(-1)
    expected = np.zeros_like(red)
    expected[:10, :20] = expected[30:, 20:] = True
    assert (red == expected).all()
    assert len(np.unique(drawn[10:30].reshape(-1, 3), axis=0)) == 2  # hatched
    where = [ImageTokens((0, 1, 2), lines, lines=True)]
    assert kept_picture([image], where, [("", "", share)]).width < 1000  # one panel
    names = [view.name for view in views_of([image], where)]
    assert names == ["image 1, line 1", "image 1, line 2"]


def test_an_image_that_is_seen_whole_and_in_tiles_is_there_twice() -> None:
    two = ImageTokens((0, 1), (Grid(1, 1, (0,)), Grid(1, 1, (1,))))
    images = [Image.new("RGB", (40, 20), "red")]
    assert [view.name for view in views_of(images, [two])] == ["image 1 whole", "image 1 in tiles"]
    page = np.asarray(kept_picture(images, [two], [("one", "", torch.tensor([0.0, 1.0]))]))
    red = np.nonzero((page == (255, 0, 0)).all(-1).any(0))[0]
    assert red.min() > page.shape[1] / 2 - 40  # the second of them is held, the first is not


def test_images_without_known_places_stand_as_they_are_with_a_note() -> None:
    images = [Image.new("RGB", (40, 20), "red")] * 2
    rows = [("one", "", torch.zeros(3))]
    bare, noted = (kept_picture(images, None, rows, note) for note in ("", "Not known."))
    assert noted.height > bare.height
    pixels = np.asarray(noted)
    assert (pixels == (255, 0, 0)).all(-1).sum() == 2 * 420 * 210


@pytest.mark.parametrize("images", [1, 2])
def test_lines_of_any_length_stay_inside_the_margins(images: int) -> None:
    where = [tokens(Grid(1, 1, (i,))) for i in range(images)]
    rows = [(title, title * 9, torch.ones(images)) for title in (*SPECS, "two\nlines", "\ud83d")]
    page = kept_picture([Image.new("RGB", (384, 96), "white")] * images, where, rows)
    pixels = np.asarray(page)
    assert (pixels[:, -22:] == pixels[0, 0]).all()
    assert (pixels[-8:] == pixels[0, 0]).all()


def test_a_name_that_fits_in_two_lines_loses_nothing() -> None:
    name = "policy:" + ",".join(f"parameter_{i}=value_{i}" for i in range(6))
    where = [tokens(Grid(1, 1, (0,)))]
    image = [Image.new("RGB", (384, 96), "white")]
    one, two = (kept_picture(image, where, [(t, "", torch.ones(1))]) for t in ("knorm", name))
    assert two.height - one.height == round(18 * 1.35)
