"""Conversion of images of any form to upright 8-bit RGB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
from huggingface_hub import utils
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from foveate.data import Clip, decode_base64, decode_image, read_image, rgb
from foveate.errors import InvalidInput

SOURCES = ("image", "image_url", "url", "bytes", "path", "base64")
"""Keys under which a mapping may have its image, in the order of preference."""

FORMS = (
    "give a PIL image, a path, an http(s) address, base64, the bytes of a file, or an array or "
    "tensor [height, width, 1, 3 or 4] or [1, 3 or 4, height, width], uint8 or floats in [0, 1]"
)
_SINGLE = (Image.Image, str, os.PathLike, bytes, bytearray, memoryview, Mapping)
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_TIMEOUT = 60  # seconds to wait for a server
_LONGEST_PATH = 1000  # characters; a longer text is base64


def image_list(images: Any, name: str = "images") -> list[Any]:
    """Return a list of images from a list, a batch [n, ...], a clip's frames or a single image.

    The images themselves are checked, not decoded.

    Raises:
        InvalidInput: no image, or one of an unknown form; the message names it: ``images[1]``.
    """
    if isinstance(images, Clip):
        return list(images.images)
    if _is_single(images) and not (is_array(images) and images.ndim == 4):
        check_image(images, name)
        return [images]
    if not isinstance(images, Iterable):
        raise InvalidInput(f"{name} is {_describe_type(images)}: {FORMS}, or a list of them.")
    several = list(images)
    for number, image in enumerate(several):
        check_image(image, f"{name}[{number}]")
    return several


def check_image(image: Any, name: str) -> None:
    """Raise InvalidInput for a value that is no image; files are not opened."""
    if is_array(image):
        _pixels(image, name)
    elif isinstance(image, Mapping):
        source_of(image, name)
    elif not _is_single(image):
        raise InvalidInput(f"{name} is {_describe_type(image)}: {FORMS}.")


def to_image(image: Any, name: str = "an image") -> Image.Image:
    """Return an image of any form as upright 8-bit RGB; clear parts become white.

    Args:
        image: see :data:`FORMS`, or a mapping with one of the keys :data:`SOURCES`.
        name: its name in errors, e.g. ``images[1]``.

    Raises:
        InvalidInput: the value is no image, or it cannot be read, fetched or decoded.
    """
    if isinstance(image, Mapping):
        return to_image(source_of(image, name), name)
    if isinstance(image, bytes | bytearray | memoryview):
        return decode_image(bytes(image), name)
    if isinstance(image, str | os.PathLike):
        return _open(image, name)
    if is_array(image):
        image = Image.fromarray(_pixels(image, name))
    if isinstance(image, Image.Image):
        return rgb(image, name)
    raise InvalidInput(f"{name} is {_describe_type(image)}: {FORMS}.")


def source_of(part: Mapping[str, Any], name: str) -> Any:
    """Return the image of a mapping.

    Raises:
        InvalidInput: the mapping has none.
    """
    source = find_source(part)
    if source is None:
        raise InvalidInput(
            f"{name} has no pixels (a chat that was loaded from a file has none of its earlier "
            'images): give a part such as {"type": "image", "image": IMAGE or PATH}.'
        )
    return source


def find_source(part: Mapping[str, Any]) -> Any:
    """Return the image of a mapping, or None."""
    return next((part[key] for key in SOURCES if part.get(key) is not None), None)


def is_array(value: Any) -> bool:
    """Return True for a tensor, or an array of numpy, JAX and others."""
    return isinstance(value, Tensor | np.ndarray) or (
        hasattr(value, "__array__") and hasattr(value, "ndim") and hasattr(value, "dtype")
    )


def _is_single(value: Any) -> bool:
    return isinstance(value, _SINGLE) or is_array(value)


def _describe_type(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__!r}"


def _open(source: str | os.PathLike[str], name: str) -> Image.Image:
    """Return an image from the web, a file, or text in base64."""
    text = os.fspath(source)
    if text.startswith(("http://", "https://")):
        return decode_image(_download(text, name), repr(text))
    if text.startswith("data:"):
        return decode_base64(text, name)
    if text.startswith("file://"):
        return read_image(Path(url2pathname(urlparse(text).path)), name)
    path = os.path.expanduser(text)
    # base64 has no full stop and no tilde; files of a hub cache have no suffix
    is_path = len(text) < _LONGEST_PATH and ("." in text or "~" in text)
    if not isinstance(source, str) or os.path.exists(path) or is_path:
        return read_image(Path(path), name)
    return decode_base64(text, f"{name} ({text!r:.80})")


def _download(url: str, name: str) -> bytes:
    # newer releases of huggingface_hub choose between httpx and its successor; older ones use httpx
    httpx: Any = getattr(utils, "httpx", None) or import_module("httpx")
    try:
        answer = httpx.get(url, timeout=_TIMEOUT, follow_redirects=True)
        answer.raise_for_status()
        content: bytes = answer.content
    except Exception as error:  # httpx's errors have no common base: InvalidURL is no HTTPError
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(
            f"{name}: {url!r:.200} cannot be fetched ({reason}). Check the address and the "
            "network, or give a file."
        ) from error
    return content


def _pixels(array: Any, name: str) -> NDArray[np.uint8]:
    """Return an array's pixels, uint8 [height, width] or [height, width, 3 or 4]."""
    is_tensor = isinstance(array, Tensor)
    if is_tensor:
        array = array.detach().cpu()
        array = array.float() if array.is_floating_point() else array  # numpy has no bfloat16
    values: NDArray[Any] = np.asarray(array)
    if not values.size or not _has_channels(values.shape):
        raise InvalidInput(f"{name} has the shape {list(values.shape)}: {FORMS}.")
    if values.ndim == 3 and _is_channels_first(values.shape, is_tensor):
        values = values.transpose(1, 2, 0)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise InvalidInput(
            f"{name} has the dtype {values.dtype}: convert it to uint8, 0 to 255, or to floats in "
            "[0, 1]."
        )
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # also where they are NaN
        raise InvalidInput(
            f"{name} has floats from {low:g} to {high:g}: scale them to [0, 1], before any "
            "normalisation, or give uint8."
        )
    return np.rint(values.astype(np.float32) * 255).astype(np.uint8)


def _has_channels(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and bool({shape[0], shape[2]} & set(_CHANNELS)))


def _is_channels_first(shape: tuple[int, ...], is_tensor: bool) -> bool:
    """Return True if the first axis is the channels.

    If both the first and the last axis could be, it is the first in PyTorch's tensors, and the last
    in all other arrays.
    """
    first, last = (size in _CHANNELS for size in (shape[0], shape[2]))
    return first and (is_tensor or not last)
