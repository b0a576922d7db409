"""Blank images of any size without memory, and their use in image processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import image_transforms

from foveate.memory.request import Size, Unknown

DRAWN, RATIO = 2**24, 100
"""Limits of an image that is really created: its pixels, and its longer side over the shorter."""
RESIZED = 2**24
"""Limit of pixels of a resized image."""
_VIEWS = {np.moveaxis, np.transpose, np.squeeze, np.expand_dims, np.swapaxes, np.shape, np.ndim}
"""Functions of NumPy that copy no pixels."""


class BlankImage(np.ndarray):
    """Pixels [H, W, 3] that share one byte. Operations that would copy them raise Unknown."""

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        raise _copied(ufunc.__name__)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func not in _VIEWS:
            raise _copied(func.__name__)
        return super().__array_function__(func, types, args, kwargs)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        """Raise Unknown: it would copy all pixels."""
        raise _copied("astype")


def _copied(by: str) -> Unknown:
    return Unknown(
        f"its image processor copies an image before it is resized ({by}), which is not counted "
        f"for more than {DRAWN:,} pixels, or one side {RATIO} times the other; ask about a smaller "
        "--size"
    )


class _Resizable:
    """Image that is created when it is resized."""

    def resize(self, size: Size, *args: Any, **kwargs: Any) -> Image.Image:
        if size[0] * size[1] > RESIZED:
            raise Unknown(
                f"its image processor makes images of {size[0]}x{size[1]}, and at most "
                f"{RESIZED:,} pixels are counted; ask about a smaller --size"
            )
        return Image.new("RGB", size)


def blank(size: Size, processor: Any) -> Any:
    """Return a blank image for a processor: a real image if it is small, otherwise one without
    memory, for use inside :func:`undrawn`.
    """
    width, height = size
    if width * height <= DRAWN and max(size) <= RATIO * min(size):
        return Image.new("RGB", size)
    if getattr(processor, "backend", "") == "torchvision":
        return torch.empty((3, height, width), dtype=torch.uint8, device="meta")
    byte = np.zeros((1, 1, 1), np.uint8)
    return np.broadcast_to(byte, (height, width, 3)).view(BlankImage)


@contextmanager
def undrawn() -> Iterator[None]:
    """Make transformers resize :class:`BlankImage` without its pixels."""
    before: Callable[..., Any] = image_transforms.to_pil_image

    def to_pil_image(image: Any, *args: Any, **kwargs: Any) -> Any:
        return _Resizable() if isinstance(image, BlankImage) else before(image, *args, **kwargs)

    image_transforms.to_pil_image = to_pil_image
    try:
        yield
    finally:
        image_transforms.to_pil_image = before
