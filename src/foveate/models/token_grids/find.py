"""The visual tokens of a prompt's images, and where on them each token stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import PreTrainedConfig

from foveate.errors import InvalidInput
from foveate.models.token_grids.grid import ImageTokens, Size
from foveate.models.token_grids.kinds import of_each


def image_tokens(
    vision: Bool[Tensor, "t"],
    inputs: Mapping[str, Any],
    images: Sequence[Size],
    config: PreTrainedConfig,
    reader: Any,
) -> list[ImageTokens]:
    """The tokens of each image of a prompt, in order, and where on it they stand.

    What the processor does to an image is read from its settings, and how many tokens the model
    makes of that from its configuration; both have to agree with the prompt.

    Args:
        vision: True at the prompt's visual tokens.
        inputs: what the processor made of it.
        images: the width and height of each, in pixels, as the processor was given them.
        config: the model's.
        reader: the processor; a tokenizer tells nothing of images.

    Raises:
        InvalidInput: that is not known for this model and this processor, or the prompt has
            another number of visual tokens.
    """
    places: list[int] = torch.nonzero(vision).flatten().tolist()
    if not places and not images:
        return []
    processor = getattr(reader, "image_processor", None)
    found = of_each(inputs, images, config, processor, len(places))
    if sum(len(one.places) for one in found) != len(places) or len(found) != len(images):
        raise InvalidInput(_unknown(len(places), len(images), config, processor))
    starts = [sum(len(one.places) for one in found[:i]) for i in range(len(found))]
    return [
        _placed(one, places[start : start + len(one.places)])
        for one, start in zip(found, starts, strict=True)
    ]


def _placed(one: ImageTokens, places: Sequence[int]) -> ImageTokens:
    grids = [grid._replace(places=tuple(places[i] for i in grid.places)) for grid in one.grids]
    return ImageTokens(tuple(places), tuple(grids))


def _unknown(tokens: int, images: int, config: PreTrainedConfig, processor: Any) -> str:
    kind = type(processor).__name__ if processor is not None else "no image processor"
    return (
        f"the places of the {tokens} visual tokens on {images} image(s) are not known for "
        f"{config.model_type} with {kind}. Give the processor that made these inputs, and the "
        "images that it was given; docs/lens.md lists the kinds that are known."
    )
