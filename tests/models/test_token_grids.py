"""A white square on a black image is under the tokens that see it, for each kind of processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, LlavaNextConfig

from foveate.errors import InvalidInput
from foveate.models.token_grids import (
    Box,
    Grid,
    ImageTokens,
    Size,
    image_tokens,
    not_known,
    tokens_in,
)

from .eyes import EYES, LLAVA, NEXT_SIZES, Eye, mask

SIZES = {
    "wide": (640, 160),
    "tall": (150, 600),
    "small": (40, 30),
    "square": (500, 500),
    "large": (1500, 1100),
}
BLURRED = {("LLaVA-OneVision", "large"): 0.2}  # its tokens are made fewer between each other
PLACES = [(0.02, 0.02), (0.3, 0.4), (0.5, 0.78), (0.78, 0.4), (0.02, 0.78), (0.78, 0.02)]


def reader(eye: Eye) -> Any:
    return SimpleNamespace(image_processor=eye.processor)


def square(size: Size, place: tuple[float, float]) -> tuple[Image.Image, Box]:
    """A white square of a fifth of the shorter side on black, and its box."""
    side = max(2, min(size) // 5)
    left, top = (round(length * share) for length, share in zip(size, place, strict=True))
    image = Image.new("RGB", size)
    box = left, top, left + side, top + side
    image.paste("white", box)
    return image, box


def covered(grid: Grid, box: Box, size: Size) -> Tensor:
    """The share of each cell that lies in the box, [rows, columns]."""
    left, top, right, bottom = grid.on(size)

    def along(start: float, end: float, low: float, high: float, cells: int) -> Tensor:
        ends = torch.linspace(low, high, cells + 1)
        inside = ends[1:].clamp_max(end) - ends[:-1].clamp_min(start)
        return inside.clamp_min(0) / (ends[1] - ends[0])

    down = along(box[1], box[3], top, bottom, grid.rows)
    return down[:, None] * along(box[0], box[2], left, right, grid.columns)


def seen(eye: Eye, image: Image.Image) -> tuple[ImageTokens, Tensor]:
    """Where its tokens are said to be, and what each token of the prompt sees (NaN: no image)."""
    inputs, bright = eye.sees(image)
    vision = mask(eye, inputs, len(bright))
    (found,) = image_tokens(vision, inputs, [image.size], eye.config, reader(eye)) or []
    sees = torch.full((len(vision),), torch.nan)
    sees[vision] = bright
    return found, sees


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("name", EYES)
def test_tokens_see_what_lies_under_them(name: str, shape: str) -> None:
    size = SIZES[shape]
    blur = BLURRED.get((name, shape), 0.25 if shape == "small" else 0.02)
    for place in PLACES[: 2 if shape == "large" else None]:
        image, box = square(size, place)
        found, sees = seen(EYES[name], image)
        lines = set(found.places) - {at for grid in found.grids for at in grid.places}
        assert sees[sorted(lines)].isnan().all()
        for grid in found.grids:
            bright = sees[list(grid.places)].view(grid.rows, grid.columns)
            torch.testing.assert_close(bright, covered(grid, box, size), atol=blur, rtol=0)
            marked = tokens_in(grid, box, size)
            if marked:
                assert grid.places[int(bright.argmax())] in marked
            else:
                assert float(bright.max()) < 0.02  # the processor cuts it off


@pytest.mark.parametrize(("shape", "cut"), [("wide", (0.02, 0.4)), ("tall", (0.3, 0.78))])
def test_what_is_cropped_is_under_no_token_and_what_is_padded_is(
    shape: str, cut: tuple[float, float]
) -> None:
    image, box = square(SIZES[shape], cut)
    for name, marks in (("LLaVA-1.5, crop", False), ("LLaVA-1.5, pad", True)):
        (grid,) = seen(EYES[name], image)[0].grids
        assert bool(tokens_in(grid, box, image.size)) is marks


def test_several_images_follow_each_other() -> None:
    eye = EYES["LLaVA-NeXT"]
    images = [Image.new("RGB", size) for size in ((640, 160), (40, 30))]
    inputs = dict(eye.processor(images, return_tensors="pt"))
    counts = [len(seen(eye, image)[0].places) for image in images]
    vision = torch.ones(sum(counts) + 1).bool()
    vision[counts[0]] = False  # a word between them
    sizes = [image.size for image in images]
    first, second = image_tokens(vision, inputs, sizes, eye.config, reader(eye)) or []
    assert first.places == tuple(range(counts[0]))
    assert second.places == tuple(range(counts[0] + 1, sum(counts) + 1))
    assert image_tokens(torch.zeros(3).bool(), {}, [], eye.config, None) == []


def test_boxes_touch_cells_that_they_share_a_part_with() -> None:
    grid = Grid(2, 4, tuple(range(10, 18)))
    assert tokens_in(grid, (0, 0, 80, 40), (80, 40)) == grid.places
    assert tokens_in(grid, (20, 0, 40, 20), (80, 40)) == (11,)
    assert tokens_in(grid, (-5, 30, 500, 90), (80, 40)) == (14, 15, 16, 17)
    half = grid._replace(box=(20.0, 0.0, 60.0, 40.0))
    assert tokens_in(half, (0, 0, 20, 40), (80, 40)) == ()
    assert tokens_in(half, (21, 0, 29, 10), (80, 40)) == (10,)


CROP = EYES["LLaVA-1.5, crop"].processor


class Own(CLIPImageProcessorPil):
    """Of a checkpoint's own code: it may do anything."""


@pytest.mark.parametrize(
    ("config", "processor", "tokens"),
    [
        pytest.param(LLAVA, None, 576, id="a tokenizer"),
        pytest.param(LLAVA, Own(size={"shortest_edge": 336}), 576, id="code of its own"),
        pytest.param(LLAVA, CLIPImageProcessorPil(), 576, id="a processor of another size"),
        pytest.param(LLAVA, CROP, 577, id="the class token, too"),
        pytest.param(LlavaNextConfig(image_grid_pinpoints=NEXT_SIZES), CROP, 576, id="no sizes"),
        pytest.param(
            SimpleNamespace(model_type="kosmos-2", vision_config={}), CROP, 64, id="other"
        ),
    ],
)
def test_what_is_not_known_is_said(config: Any, processor: Any, tokens: int) -> None:
    inputs, own = {"pixel_values": torch.zeros(1, 3, 336, 336)}, SimpleNamespace()
    own.image_processor = processor
    assert image_tokens(torch.ones(tokens).bool(), inputs, [(640, 160)], config, own) is None
    made = type(own if processor is None else processor).__name__
    assert f"not known for {config.model_type} and {made}" in not_known(config, own)


@pytest.mark.parametrize("images", [0, 2])
def test_other_images_than_the_prompts_are_refused(images: int) -> None:
    inputs, vision = {"pixel_values": torch.zeros(1, 3, 336, 336)}, torch.ones(576).bool()
    with pytest.raises(InvalidInput, match=rf"576 visual tokens of 1 image.* {images} image"):
        image_tokens(vision, inputs, [(640, 160)] * images, LLAVA, reader(EYES["LLaVA-1.5, crop"]))
