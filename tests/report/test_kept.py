"""Where visual tokens stand, and how bright they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import LlavaConfig, PixtralVisionConfig, PreTrainedConfig, Qwen2VLConfig

from foveate.errors import InvalidInput
from foveate.report import Grid, grids, kept_picture
from foveate.report.kept import lit

from .hostile import SPECS

TEXT = PreTrainedConfig()


def mask(*runs: int) -> torch.Tensor:
    """Text and images in turn, by their lengths."""
    return torch.cat([torch.full((n,), i % 2 == 1) for i, n in enumerate(runs)])


def test_pixtral_tells_sizes_in_pixels() -> None:
    config = LlavaConfig(vision_config=PixtralVisionConfig(patch_size=24))
    inputs = {"image_sizes": torch.tensor([[24, 72], [48, 48]])}
    found = grids(mask(2, 3, 1, 4, 2), inputs, 2, config)
    assert found == [Grid(1, 3, (2, 3, 4)), Grid(2, 2, (6, 7, 8, 9))]


def test_qwen_tells_grids_before_merging() -> None:
    config = Qwen2VLConfig(vision_config={"spatial_merge_size": 2})
    inputs = {"image_grid_thw": torch.tensor([[1, 4, 2], [1, 2, 6]])}
    found = grids(mask(1, 2, 1, 3), inputs, 2, config)
    assert found == [Grid(2, 1, (1, 2)), Grid(1, 3, (4, 5, 6))]


def test_a_prompt_of_text_has_no_grids() -> None:
    assert grids(mask(3), {}, 0, LlavaConfig()) == []


def test_others_are_squares() -> None:
    assert grids(mask(3, 9, 1, 9), {}, 2, LlavaConfig()) == [
        Grid(3, 3, tuple(range(3, 12))),
        Grid(3, 3, tuple(range(13, 22))),
    ]


@pytest.mark.parametrize(("tokens", "images"), [(10, 1), (9, 2), (4, 0), (0, 1)])
def test_what_makes_no_grid_is_refused(tokens: int, images: int) -> None:
    if tokens == 0:
        assert grids(mask(3), {}, 1, LlavaConfig()) == [Grid(0, 0, ())]
        return
    with pytest.raises(InvalidInput, match=f"the {tokens} visual tokens on {images} image"):
        grids(mask(3, tokens), {}, images, LlavaConfig())


def test_cells_are_as_bright_as_they_are_held() -> None:
    white = Image.new("RGB", (40, 20), "white")
    share = torch.tensor([0.5, 0.0, 1.0, 0.25, 0.75])
    light = np.asarray(lit(white, Grid(1, 4, (1, 2, 3, 4)), share).convert("L")).astype(float)
    cells = light.reshape(20, 4, 10)
    assert (cells == cells[:1, :, :1]).all()  # one brightness for a cell
    dark, bright, quarter, most = cells[0, :, 0]
    assert bright == 255
    assert 14 < dark < 60  # still to be made out
    assert dark < quarter < most < bright
    assert (most - quarter) / (bright - dark) == pytest.approx(0.5, abs=0.02)


def test_the_page_has_a_row_for_every_method() -> None:
    images = [Image.new("RGB", (384, h), "white") for h in (96, 144)]
    where = [Grid(1, 2, (0, 1)), Grid(1, 1, (2,))]
    rows = [(f"method {i}", "answer", torch.full((3,), i / 3)) for i in range(4)]
    heights = {n: kept_picture(images, where, rows[:n]).height for n in (1, 2, 4)}
    assert heights[2] - heights[1] == (heights[4] - heights[2]) / 2 > 144 * 300 / 384
    page = np.asarray(kept_picture(images, where, rows).convert("L")).astype(float)
    bands = [band.mean() for band in np.array_split(page[:-30], 4)]
    assert bands == sorted(bands)


def test_cells_follow_each_other_row_by_row():
    white, share = Image.new("RGB", (30, 20), "white"), torch.arange(6) / 5
    light = np.asarray(lit(white, Grid(2, 3, (0, 1, 2, 3, 4, 5)), share).convert("L"))
    cells = light[5::10, 5::10].flatten().tolist()
    assert cells == sorted(set(cells))


@pytest.mark.parametrize("images", [1, 2])
def test_lines_of_any_length_stay_inside_the_margins(images: int) -> None:
    where = [Grid(1, 1, (i,)) for i in range(images)]
    rows = [(title, title * 9, torch.ones(images)) for title in (*SPECS, "two\nlines", "\ud83d")]
    page = kept_picture([Image.new("RGB", (384, 96), "white")] * images, where, rows)
    pixels = np.asarray(page)
    assert (pixels[:, -22:] == pixels[0, 0]).all()
    assert (pixels[-8:] == pixels[0, 0]).all()
