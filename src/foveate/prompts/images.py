"""Images of messages, in any of the forms in which a message may bring one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from transformers.image_utils import load_image

from foveate.data import decode_base64, read_image, rgb
from foveate.errors import InvalidInput

SOURCES = ("image", "url", "path", "base64", "image_url")
"""Where a part of a message may have its image."""


def picture(part: Mapping[str, Any]) -> Image.Image:
    """The part's image, in RGB.

    Raises:
        InvalidInput: it brings none, or one that cannot be read.
    """
    given = next((part[name] for name in SOURCES if part.get(name) is not None), None)
    if isinstance(given, Mapping):  # as OpenAI's API words it
        given = given.get("url")
    if isinstance(given, Image.Image):
        return rgb(given)
    if given is None:
        raise InvalidInput(
            "an image of this conversation has no pixels (a chat that was loaded does not keep "
            'them): give a part such as {"type": "image", "image": IMAGE or PATH}.'
        )
    if not isinstance(given, str | Path):
        raise InvalidInput(f"{type(given).__name__!r} cannot be read as an image: give a path.")
    return rgb(_opened(given))


def _opened(given: str | Path) -> Image.Image:
    """From the web, a file, or text in base64."""
    text = str(given)
    if text.startswith(("http://", "https://")):
        try:
            image: Image.Image = load_image(text)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{text!r} cannot be read as an image: {error}") from error
        return image
    if isinstance(given, Path) or (len(text) < 1000 and Path(text).suffix):
        return read_image(Path(given))
    return decode_base64(text, f"{text!r:.200}")
