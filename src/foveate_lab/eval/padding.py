"""Padding of images to squares, as LLaVA-1.5's authors did; the hub's processor crops them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from foveate.defaults import DeviceMap
from foveate.errors import InvalidParameter
from foveate.loading import model
from foveate.loading.model import Loaded
from foveate.models.token_grids.kinds import kind_of

_PADDABLE = ("CLIPImageProcessor", "LlavaImageProcessor")
_KEPT = (
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
    "do_convert_rgb",
)


def load(
    name: str,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    *,
    pad_images: bool = False,
) -> Loaded:
    """Load a model; ``pad_images`` pads its images to squares.

    Raises:
        InvalidParameter: ``pad_images`` for a processor other than LLaVA-1.5's.
    """
    loaded = model.load(name, trust_remote_code, device_map)
    return replace(loaded, reader=padded(loaded.reader)) if pad_images else loaded


def padded(reader: Any) -> Any:
    """Copy a processor so that it pads images to squares, in its mean colour, without cropping.

    ``foveate convert`` builds the same processor for the authors' directories
    (``image_aspect_ratio`` "pad"); pixels are equal, with Pillow.

    Raises:
        InvalidParameter: a processor other than LLaVA-1.5's.
    """
    images = getattr(reader, "image_processor", None)
    if kind_of(images) not in _PADDABLE:
        kind = type(reader if images is None else images).__name__
        raise InvalidParameter(
            f"pad_images is for processors of LLaVA-1.5's kind ({' or '.join(_PADDABLE)}), and "
            f"this is {kind}. Leave it out."
        )
    padding_reader = copy.copy(reader)
    settings = {name: getattr(images, name) for name in _KEPT}
    padding_reader.image_processor = LlavaImageProcessorPil(**settings, do_pad=True)
    return padding_reader
