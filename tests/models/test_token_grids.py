"""A white square on a black image is under the tokens that see it, for each kind of processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, Kosmos2Config, LlavaNextConfig, LlavaNextProcessor

from foveate.errors import InvalidInput
from foveate.models.token_grids import (
    Grid,
    image_tokens,
    not_known,
    tokens_in,
)
from tests.zoo.directory import tokenizer

from .draw import FOLDER, PICTURES, routes
from .published import EYES, LLAVA, NEXT_SIZES
from .squares import PLACES, SIZES, check, reader, seen, square


def test_every_kind_is_looked_at() -> None:
    assert len(EYES) == 14


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("name", EYES)
def test_tokens_see_what_lies_under_them(name: str, shape: str) -> None:
    for place in PLACES[: 2 if shape == "large" else None]:
        check(name, EYES[name], shape, place)


@pytest.mark.parametrize(("shape", "cut"), [("wide", (0.02, 0.4)), ("tall", (0.3, 0.78))])
def test_what_is_cropped_is_under_no_token_and_what_is_padded_is(
    shape: str, cut: tuple[float, float]
) -> None:
    image, box = square(SIZES[shape], cut)
    for name, marks in (("LLaVA-1.5, crop", False), ("LLaVA-1.5, pad", True)):
        (grid,) = seen(EYES[name], image)[0].grids
        assert bool(tokens_in(grid, box, image.size)) is marks


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_docs_are_drawn_as_they_are(name: str) -> None:
    with Image.open(FOLDER / f"{name}.png") as stored:
        held, made = (np.asarray(one.convert("RGB"), float) for one in (stored, PICTURES[name]()))
    assert held.shape == made.shape
    assert np.abs(held - made).mean() < 2  # its colours are a few


def test_a_wide_image_is_the_same_by_both_layouts_and_loses_nothing() -> None:
    _, pixels = routes()
    hub, squared, converted = pixels.values()
    assert torch.equal(squared, converted)
    ends = [(squared[:, :, at] - squared[:, :1, :1].squeeze(-1)).abs() for at in (0, -1)]
    assert [bool((end > 1).any()) for end in ends] == [True, True]  # paper, not padding
    lowest = squared[0, 150:186].amin(0)  # the words' darkest pixels, column by column
    assert all(float(lowest[part].min()) < -1 for part in (slice(0, 80), slice(256, 336)))
    assert not torch.equal(hub, squared)


def test_several_images_follow_each_other() -> None:
    eye = EYES["LLaVA-NeXT"]
    images = [Image.new("RGB", size) for size in ((640, 160), (40, 30))]
    inputs = dict(eye.processor(images, return_tensors="pt"))
    counts = [len(seen(eye, image)[0].indices) for image in images]
    vision = torch.ones(sum(counts) + 1).bool()
    vision[counts[0]] = False  # a word between them
    sizes = [image.size for image in images]
    first, second = image_tokens(vision, inputs, sizes, eye.config, reader(eye)) or []
    assert first.indices == tuple(range(counts[0]))
    assert second.indices == tuple(range(counts[0] + 1, sum(counts) + 1))
    assert image_tokens(torch.zeros(3).bool(), {}, [], eye.config, None) == []


def test_the_places_are_those_that_a_processor_makes_in_the_text() -> None:
    eye, words = EYES["LLaVA-NeXT"], tokenizer()
    processor = LlavaNextProcessor(
        image_processor=eye.processor,
        tokenizer=words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    images = [Image.new("RGB", size) for size in SIZES.values()]
    text = "a<image>b" * len(images)
    inputs = processor(images=images, text=text, return_tensors="pt")
    vision = inputs["input_ids"][0] == words.convert_tokens_to_ids("<image>")
    found = image_tokens(vision, inputs, list(SIZES.values()), eye.config, processor) or []
    assert [one.indices[-1] + 3 for one in found[:-1]] == [one.indices[0] for one in found[1:]]
    assert all(one.indices == tuple(range(one.indices[0], one.indices[-1] + 1)) for one in found)


def test_boxes_touch_cells_that_they_share_a_part_with() -> None:
    grid = Grid(2, 4, tuple(range(10, 18)))
    assert tokens_in(grid, (0, 0, 80, 40), (80, 40)) == grid.indices
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
        pytest.param(Kosmos2Config(), CROP, 64, id="other"),
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
