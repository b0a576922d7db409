"""Images within bounds, and the sizes that processors make of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from transformers import GotOcr2ImageProcessorPil, Qwen2VLImageProcessorPil

from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.prompts.prompt import read
from foveate_lab.eval.pixels import Pixels, bounded, seen_sizes
from tests.zoo.catalogue import fresh

SCREEN = Image.new("RGB", (200, 100))


@pytest.fixture(scope="module")
def qwen() -> Loaded:
    """Of the model and its processor, what has to do with the sizes of images."""
    model = fresh("qwen2_vl")
    images = Qwen2VLImageProcessorPil(patch_size=model.config.vision_config.patch_size)
    reader: Any = SimpleNamespace(image_processor=images)
    return Loaded("tiny-qwen", model, reader, sees=True)


@pytest.mark.parametrize(
    ("pixels", "size"),
    [
        (Pixels(), (200, 96)),  # the nearest multiples of 8, two patches
        (Pixels(40_000, 60_000), (288, 144)),  # sides times the root of 2, rounded up
        (Pixels(3136, 10_000), (136, 64)),  # sides over the root of 2, rounded down
        (Pixels(minimum=40_000), (288, 144)),
        (Pixels(maximum=10_000), (136, 64)),
    ],
)
def test_a_processor_with_bounds_keeps_them(
    qwen: Loaded, pixels: Pixels, size: tuple[int, int]
) -> None:
    before = qwen.reader.image_processor.size
    inputs = bounded(qwen, pixels).reader.image_processor([SCREEN], return_tensors="pt")
    assert seen_sizes(inputs, qwen.model.config) == (size,)
    assert qwen.reader.image_processor.size == before


def test_bounds_that_have_no_meaning_are_refused(qwen: Loaded, loaded: Loaded) -> None:
    with pytest.raises(InvalidInput, match=r"fixed size, so max_pixels=9 has no meaning"):
        bounded(loaded, Pixels(maximum=9))
    with pytest.raises(InvalidInput, match=r"asks for 99999999 to \d+ pixels"):
        bounded(qwen, Pixels(minimum=99_999_999))
    prompt = read(loaded, "?", [SCREEN])
    assert seen_sizes(prompt.inputs, loaded.model.config) == ()


@pytest.mark.parametrize(("tiles", "count"), [(None, 13), (6, 7), (1, 1)])
def test_tiles_are_bounded_beside_the_image_as_a_whole(tiles: int | None, count: int) -> None:
    images = GotOcr2ImageProcessorPil(crop_to_patches=True, size={"height": 8, "width": 8})
    reader: Any = SimpleNamespace(image_processor=images)
    intern = Loaded("tiny-internvl", fresh("internvl"), reader, sees=True)
    within = bounded(intern, Pixels(tiles=tiles)).reader.image_processor
    made = within([Image.new("RGB", (400, 300))], return_tensors="pt")
    assert made["num_patches"].tolist() == [count]
    assert images.max_patches == 12


def test_tiles_of_what_cuts_none_are_refused(qwen: Loaded) -> None:
    with pytest.raises(InvalidInput, match="so max_tiles=6 has no meaning"):
        bounded(qwen, Pixels(tiles=6))
    assert bounded(qwen, Pixels(tiles=6, optional=True)) is qwen


def test_bounds_that_are_optional_hold_where_there_are_any(qwen: Loaded, loaded: Loaded) -> None:
    optional = Pixels(minimum=40_000, optional=True)
    assert bounded(loaded, optional) is loaded
    assert bounded(qwen, optional).reader.image_processor.size["shortest_edge"] == 40_000
