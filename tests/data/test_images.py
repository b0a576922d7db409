"""Images of every mode and format, as a model is to see them."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from foveate.data import decode_image, read_image, rgb
from foveate.errors import InvalidInput

RAMP = np.linspace(0, 65535, 256).round().reshape(16, 16)  # of 16 bits: every shade of 8
BLACK_ON_CLEAR = Image.new("RGBA", (4, 2), (0, 0, 0, 0))
BLACK_ON_CLEAR.putpixel((1, 0), (0, 0, 0, 255))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def seen(held: bytes) -> np.ndarray[Any, Any]:
    image = decode_image(held, "it")
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("PNG", np.uint16),
        ("TIFF", np.uint16),
        ("TIFF", ">u2"),
        ("PPM", np.int32),
        ("TIFF", np.int32),
        ("TIFF", np.float32),
    ],
)
def test_a_ramp_of_16_bits_has_256_shades(form: str, kind: Any) -> None:
    pixels = seen(encoded(Image.fromarray(RAMP.astype(kind)), form))
    assert (pixels == np.arange(256).reshape(16, 16, 1)).all()


def test_dark_grey_of_16_bits_stays_dark() -> None:
    dark = np.full((4, 4), 257 * 3)
    for form, kind in (("PNG", np.uint16), ("PPM", np.int32)):
        assert (seen(encoded(Image.fromarray(dark.astype(kind)), form)) == 3).all()


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (np.float32, [0, 0.2, 1.0], [0, 51, 255]),
        (np.float32, [0, 1, 255.0], [0, 1, 255]),
        (np.int32, [0, 1, 255], [0, 1, 255]),
        (np.int32, [0, 257, 65535], [0, 1, 255]),
    ],
)
def test_grey_of_32_bits_is_scaled_by_the_white_that_its_values_say(
    kind: Any, values: list[float], expected: list[int]
) -> None:
    held = encoded(Image.fromarray(np.array([values], dtype=kind)), "TIFF")
    assert seen(held)[0, :, 0].tolist() == expected


@pytest.mark.parametrize("value", [-1, 65536, float("nan"), float("inf")])
def test_grey_of_32_bits_without_a_white_is_refused(value: float) -> None:
    held = encoded(Image.fromarray(np.array([[0, value]], dtype=np.float32)), "TIFF")
    with pytest.raises(InvalidInput, match=r"it has grey values of 32 bits.*8 or 16 bits"):
        decode_image(held, "it")


def _clear_shade(mode: str, clear: Any) -> bytes:
    image = BLACK_ON_CLEAR.convert("RGBA")
    page = Image.new("RGB", image.size, (9, 9, 9))
    page.paste(image, mask=image)
    return encoded(page.convert(mode), "PNG", transparency=clear)


def _palette_in_bytes() -> bytes:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([0, 0, 0, 9, 9, 9])
    image.putpixel((1, 0), 0)
    return encoded(image, "PNG", transparency=bytes([255, 0]))


def _deep_grey() -> bytes:
    values = np.full((2, 4), 9 * 257, dtype=np.uint16)
    values[0, 1] = 0
    return encoded(Image.fromarray(values), "PNG", transparency=9 * 257)


@pytest.mark.parametrize(
    "held",
    [
        encoded(BLACK_ON_CLEAR, "PNG"),
        encoded(BLACK_ON_CLEAR.convert("LA"), "PNG"),
        encoded(BLACK_ON_CLEAR, "WEBP", lossless=True),
        encoded(BLACK_ON_CLEAR, "TIFF"),
        encoded(BLACK_ON_CLEAR, "GIF"),
        _palette_in_bytes(),
        _deep_grey(),
        _clear_shade("RGB", (9, 9, 9)),
        _clear_shade("L", 9),
    ],
    ids=["RGBA", "LA", "WebP", "TIFF", "GIF", "palette", "16 bits", "RGB shade", "L shade"],
)
def test_black_on_clear_is_black_on_white(held: bytes) -> None:
    pixels = seen(held)
    assert pixels[0, 1].tolist() == [0, 0, 0]
    assert (np.delete(pixels.reshape(-1, 3), 1, axis=0) == 255).all()


def test_half_clear_is_half_white_and_palettes_with_alpha_are_read() -> None:
    half = Image.new("RGBA", (2, 2), (200, 0, 0, 128))
    expected = [round((200 * 128 + 255 * 127) / 255), 127, 127]
    assert np.abs(seen(encoded(half, "PNG"))[0, 0].astype(int) - expected).max() <= 1
    assert rgb(Image.new("PA", (2, 2))).getpixel((0, 0)) == (255, 255, 255)


def test_a_clear_shade_of_48_bit_colour_is_found() -> None:
    """Written by hand: Pillow writes no PNG of 16 bits a channel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    clear, other = (0x1200, 0x3400, 0x5600), (0x0000, 0x0000, 0x0000)
    row = b"\0" + struct.pack(">6H", *clear, *other)
    held = b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)),
            chunk(b"tRNS", struct.pack(">3H", *clear)),
            chunk(b"IDAT", zlib.compress(row)),
            chunk(b"IEND", b""),
        ]
    )
    assert seen(held)[0].tolist() == [[255, 255, 255], [0, 0, 0]]


def test_inks_become_light() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for form in ("TIFF", "JPEG"):
        pixels = seen(encoded(red, form)).astype(int)
        assert np.abs(pixels - [255, 0, 0]).max() <= 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_upright(form: str) -> None:
    wide = Image.new("RGB", (40, 20), "white")
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned
    assert decode_image(encoded(wide, form, exif=exif), "it").size == (20, 40)


def test_corrupt_metadata_does_not_hide_the_pixels() -> None:
    held = encoded(Image.new("RGB", (8, 8), "white"), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff")
    assert (seen(held) == 255).all()


def test_what_is_no_image_is_named_with_the_way_out(tmp_path: Path) -> None:
    def refused(path: Path, says: str) -> None:
        with pytest.raises(InvalidInput, match=says) as caught:
            read_image(path, "table.jsonl, line 3")
        assert f"table.jsonl, line 3: {str(path)!r}" in str(caught.value)

    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), "PNG")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes(whole[:70])
    (tmp_path / "page.eps").write_bytes(encoded(Image.new("RGB", (4, 4)), "EPS"))
    refused(tmp_path, "is a directory. Give a file")
    refused(tmp_path / "no.png", "does not exist. Check the path")
    refused(tmp_path / "pipe", "is a pipe or a device. Give a file")
    refused(tmp_path / ("x" * 300), "File name too long")
    refused(tmp_path / "a\0b", "null byte")
    refused(tmp_path / "empty.png", "its format is none of PNG, JPEG")
    refused(tmp_path / "page.eps", "its format is none of PNG, JPEG")  # no program is run for it
    refused(tmp_path / "cut.png", "cannot be read as an image .* Give a PNG, JPEG or WebP")


@pytest.mark.parametrize("times", [1.5, 3])  # Pillow warns, and raises
def test_an_image_that_would_fill_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    held = encoded(Image.new("RGB", (10, int(10 * times))), "PNG")
    with pytest.raises(InvalidInput, match="it is too large an image: more than 100 pixels"):
        decode_image(held, "it")


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an image has no pixels: it is 0 x 5"):
        rgb(Image.new("RGB", (0, 5)))
