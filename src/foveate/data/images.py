"""Reading of images as upright 8-bit RGB; transparent pixels become white.

Of several frames or pages, the first is read. 16-bit grey is scaled to 8 bits. 32-bit grey has no
defined white: integers up to 255 are taken as 8 bits, up to 65535 as 16 bits; floats up to 1 are
fractions of white; other values are refused.
"""

from __future__ import annotations

import warnings
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from foveate.data.texts import read_bytes, reason
from foveate.errors import InvalidInput

# Formats to read. Pillow knows more, but runs another program for one of them (EPS).
FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "DIB",
    "TIFF",
    "PPM",
    "TGA",
    "ICO",
    "JPEG2000",
    "AVIF",
)
SIXTEEN_BITS = ("PNG", "PPM")  # their grey with more than 8 bits always ranges up to 65535
HIGHEST = 65535


def read_image(path: Path, where: str = "") -> Image.Image:
    """Return the image in a file; errors begin with ``where``.

    Raises:
        InvalidInput: the file is missing, or is no image.
    """
    name = f"{where}: {str(path)!r}" if where else repr(str(path))
    return decode_image(read_bytes(path, name), name)


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode the content of an image file; ``name`` is its name in errors.

    Raises:
        InvalidInput: it is no image.
    """
    with _decoding(name):
        Image.init()
        formats = [
            name for name in FORMATS if name in Image.OPEN
        ]  # some builds of Pillow lack AVIF
        with Image.open(BytesIO(content), formats=formats) as image:
            _scale_transparent_colour(image)
            return _rgb(image, name)


def decode_base64(text: str, name: str) -> Image.Image:
    """Decode an image file in base64, with or without "data:image/png;base64,".

    Raises:
        InvalidInput: it is no base64, or no image.
    """
    try:
        content = b64decode("".join(text.rpartition(",")[2].split()), validate=True)
    except ValueError as error:
        raise InvalidInput(
            f"{name} cannot be read as an image: it is neither a path nor base64 ({error})."
        ) from error
    return decode_image(content, name)


def rgb(image: Image.Image, name: str = "an image") -> Image.Image:
    """Convert an image of any mode to upright RGB, on white where it is transparent.

    Raises:
        InvalidInput: it cannot be decoded, has no pixels, or its white is not known.
    """
    with _decoding(name):
        return _rgb(image, name)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # warnings about metadata; pixels are not affected
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except InvalidInput:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidInput(
            f"{name} is too large an image: more than {Image.MAX_IMAGE_PIXELS:,} pixels. Scale it "
            "down, or raise PIL.Image.MAX_IMAGE_PIXELS."
        ) from error
    except Exception as error:  # decoders raise errors of any type for broken files
        unidentified = isinstance(error, UnidentifiedImageError)
        explanation = (
            f"its format is none of {', '.join(FORMATS)}" if unidentified else reason(error)
        )
        raise InvalidInput(
            f"{name} cannot be read as an image ({explanation}). Give a PNG, JPEG or WebP file."
        ) from error


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if not all(image.size):
        raise InvalidInput(f"{name} has no pixels: it is {image.width} x {image.height}.")
    form = image.format
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F" or upright.mode.startswith("I"):
        return _grey_to_rgb(upright, form, name)
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    page = Image.new("RGBA", upright.size, "white")
    return Image.alpha_composite(page, upright.convert("RGBA")).convert("RGB")


def _scale_transparent_colour(image: Image.Image) -> None:
    """Scale the transparent colour of a 48-bit PNG: Pillow scales only the pixels to 24 bits."""
    clear = image.info.get("transparency")
    deep = "RGB;16B" in str(getattr(image, "tile", ()))
    if image.mode == "RGB" and deep and isinstance(clear, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _grey_to_rgb(image: Image.Image, form: str | None, name: str) -> Image.Image:
    """Convert grey of more than 8 bits to RGB."""
    values = np.asarray(image)
    deep = image.mode != "F" and (image.mode != "I" or form in SIXTEEN_BITS)
    white = HIGHEST if deep else _white_level(values, name)
    shares = values.astype(np.float32) / np.float32(white)
    pixels = np.rint(255 * shares).astype(np.uint8)
    clear = image.info.get("transparency")  # a PNG may declare one shade as transparent
    if isinstance(clear, int):
        pixels[values == clear] = 255
    return Image.fromarray(pixels).convert("RGB")


def _white_level(values: NDArray[Any], name: str) -> int:
    """Return the value of white in 32-bit grey; raises InvalidInput if it is ambiguous."""
    low, high = values.min(), values.max()
    fractions = values.dtype.kind == "f"
    for white in (1, 255, HIGHEST) if fractions else (255, HIGHEST):
        if low >= 0 and high <= white:
            return white
    raise InvalidInput(
        f"{name} has grey values of 32 bits from {low} to {high}, but no defined white. "
        "Save it with 8 or 16 bits."
    )
