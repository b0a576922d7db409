"""The prompt's images, small enough for a page and cut as the model sees them."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

SIDE = 768  # pixels of the longer side, at most


def data_uri(image: Image.Image) -> str:
    """The image without what a file knows about it: as PNG, or as JPEG where that is smaller."""
    image = image.convert("RGB")
    image.thumbnail((SIDE, SIDE))
    kinds = {
        "png": _encoded(image, "PNG", optimize=True),
        "jpeg": _encoded(image, "JPEG", quality=88),
    }
    kind, data = min(kinds.items(), key=lambda item: len(item[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def as_seen(image: Image.Image, reader: Any) -> Image.Image:
    """What is left of an image by a processor that crops it: the middle, in the crop's shape."""
    processor = getattr(reader, "image_processor", None)
    size = getattr(processor, "crop_size", None)
    if not getattr(processor, "do_center_crop", False) or size is None:
        return image
    across, down = size["width"], size["height"]
    scale = min(image.width / across, image.height / down)
    width, height = round(across * scale), round(down * scale)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
