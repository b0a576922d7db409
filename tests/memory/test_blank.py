"""Images of any size are counted without their pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from PIL import Image

from foveate.errors import InvalidInput
from foveate.memory import Request, fit
from foveate.memory.model import bare
from foveate.memory.processors import blank
from foveate.memory.processors.inputs import pixels
from foveate.memory.request import Unknown

GB = 10**9
FAMILIES = ("CLIP", "Qwen2VL", "LlavaNext", "LlavaOnevision", "Idefics3", "Pixtral", "GotOcr2")


@pytest.fixture
def never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of many pixels cannot be made."""
    new = Image.new

    def small(mode: str, size: tuple[int, int], *color: Any) -> Image.Image:
        assert size[0] * size[1] <= blank.DRAWN
        return new(mode, size, *color)

    monkeypatch.setattr(Image, "new", small)


@pytest.mark.usefixtures("never_drawn", "no_changes")
def test_an_image_of_any_size_takes_no_memory(llava: Path) -> None:
    small, *found = (
        fit(str(llava), Request(images=2, size=size), GB, dtype="float32", policies=[])
        for size in ((40, 30), (20000, 20000), (999_999, 700_000))
    )
    assert [each.trace for each in found] == [small.trace] * 2
    assert [each.peak for each in found] == [small.peak] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_processors_make_the_same_of_images_that_are_drawn_and_that_are_not(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = getattr(transformers, f"{family}ImageProcessorPil")()
    made = []
    for drawn in (blank.DRAWN, 0):
        monkeypatch.setattr(blank, "DRAWN", drawn)
        with blank.undrawn():
            out = processor([blank.blank((333, 177), processor)] * 2, return_tensors="pt")
        grids = {name: one.tolist() for name, one in out.items() if not one.is_floating_point()}
        made.append((grids, {name: (one.shape, one.dtype) for name, one in out.items()}))
    assert made[0] == made[1]


def test_a_processor_that_copies_images_before_it_resizes_them_is_unknown(llava: Path) -> None:
    processor = transformers.Pix2StructImageProcessorPil()
    with pytest.raises(Unknown, match=r"copies an image before it is resized \(astype\)"):
        pixels(
            replace(bare(str(llava), "float32"), processor=processor),
            Request(images=1, size=(20000, 20000)),
        )


def test_a_side_that_a_processor_stretches_beyond_all_bounds_is_unknown(llava: Path) -> None:
    found = fit(str(llava), Request(images=1, size=(999_995, 5)), GB, dtype="float32", policies=[])
    assert "makes images of" in found.unknown["tower, prefill and cache"]


@pytest.mark.parametrize(
    "asked", [{"text": 10**12}, {"batch": 10**9}, {"images": 10**8, "text": 10**8 + 1}]
)
def test_numbers_that_no_memory_holds_are_refused_at_once(asked: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="at most 16,777,216 tokens are counted"):
        Request(size=(40, 30), **asked)
