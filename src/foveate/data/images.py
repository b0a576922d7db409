"""Images of any kind, as models take them: upright, 8-bit RGB, and on white where they are clear.

Of several frames or pages it is the first. Grey of 16 bits is scaled to 8. Grey of 32 bits says
nothing about its white: whole numbers up to 255 are taken as they are and those up to 65535 as 16
bits; fractions up to 1 are shares of white; anything else is refused.
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

# What pictures come in. Pillow knows more, and runs another program for one of them (EPS).
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
SIXTEEN_BITS = ("PNG", "PPM")  # whose grey with more than 8 bits reaches up to 65535, always
HIGHEST = 65535


def read_image(path: Path, where: str = "") -> Image.Image:
    """The image in a file; ``where`` is what errors say before its path.

    Raises:
        InvalidInput: nothing is there, or no image.
    """
    name = f"{where}: {str(path)!r}" if where else repr(str(path))
    return decode_image(read_bytes(path, name), name)


def decode_image(held: bytes, name: str) -> Image.Image:
    """The image of a file that is given by its bytes; ``name`` is what errors call it.

    Raises:
        InvalidInput: it is none.
    """
    with _decoding(name):
        Image.init()
        formats = [one for one in FORMATS if one in Image.OPEN]  # AVIF is not in every Pillow
        with Image.open(BytesIO(held), formats=formats) as image:
            _narrow_clear_shade(image)
            return _rgb(image, name)


def decode_base64(text: str, name: str) -> Image.Image:
    """The image of a file that is given in base64, with or without "data:image/png;base64,".

    Raises:
        InvalidInput: it is none.
    """
    try:
        held = b64decode("".join(text.rpartition(",")[2].split()), validate=True)
    except ValueError as error:
        raise InvalidInput(
            f"{name} cannot be read as an image: it is no path of one, and no base64 ({error})."
        ) from error
    return decode_image(held, name)


def rgb(image: Image.Image, name: str = "an image") -> Image.Image:
    """An image of any mode, upright, in RGB, and on white where it is clear.

    Raises:
        InvalidInput: it cannot be decoded, has no pixels, or its white is not known.
    """
    with _decoding(name):
        return _rgb(image, name)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of metadata: the pixels are whole
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except InvalidInput:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidInput(
            f"{name} is too large an image: more than {Image.MAX_IMAGE_PIXELS:,} pixels. Scale it "
            "down, or raise PIL.Image.MAX_IMAGE_PIXELS."
        ) from error
    except Exception as error:  # decoders of broken files raise whatever they run into
        known = isinstance(error, UnidentifiedImageError)
        said = f"its format is none of {', '.join(FORMATS)}" if known else reason(error)
        raise InvalidInput(
            f"{name} cannot be read as an image ({said}). Give a PNG, JPEG or WebP file."
        ) from error


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if not all(image.size):
        raise InvalidInput(f"{name} has no pixels: it is {image.width} x {image.height}.")
    form = image.format
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F" or upright.mode.startswith("I"):
        return _from_grey(upright, form, name)
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    page = Image.new("RGBA", upright.size, "white")
    return Image.alpha_composite(page, upright.convert("RGBA")).convert("RGB")


def _narrow_clear_shade(image: Image.Image) -> None:
    """Pillow reads PNG's colours of 48 bits as 24, but not the one that is named as clear."""
    clear = image.info.get("transparency")
    deep = "RGB;16B" in str(getattr(image, "tile", ()))
    if image.mode == "RGB" and deep and isinstance(clear, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _from_grey(image: Image.Image, form: str | None, name: str) -> Image.Image:
    """Grey of more than 8 bits."""
    values = np.asarray(image)
    deep = image.mode != "F" and (image.mode != "I" or form in SIXTEEN_BITS)
    white = HIGHEST if deep else _white(values, name)
    shares = values.astype(np.float32) / np.float32(white)
    pixels = np.rint(255 * shares).astype(np.uint8)
    clear = image.info.get("transparency")  # a PNG may name one shade that is
    if isinstance(clear, int):
        pixels[values == clear] = 255
    return Image.fromarray(pixels).convert("RGB")


def _white(values: NDArray[Any], name: str) -> int:
    """The value of white in grey of 32 bits."""
    low, high = values.min(), values.max()
    fractions = values.dtype.kind == "f"
    for white in (1, 255, HIGHEST) if fractions else (255, HIGHEST):
        if low >= 0 and high <= white:
            return white
    raise InvalidInput(
        f"{name} has grey values of 32 bits from {low} to {high}, and nothing says which is white. "
        "Save it with 8 or 16 bits."
    )
