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
from foveate.models.token_grids.kinds import count_of, frames_of_each, of_each


def image_tokens(
    vision: Bool[Tensor, "t"],
    inputs: Mapping[str, Any],
    images: Sequence[Size],
    config: PreTrainedConfig,
    reader: Any,
) -> list[ImageTokens] | None:
    """The tokens of each image of a prompt, in order, and where on it they stand.

    What the processor does to an image is read from its settings, and how many tokens the model
    makes of that from its configuration; both have to agree with the prompt.

    Args:
        vision: True at the prompt's visual tokens.
        inputs: what the processor made of it.
        images: the width and height of each, in pixels, as the processor was given them; before
            them those of videos' frames, where the videos stand first in the prompt.
        config: the model's.
        reader: the processor; a tokenizer tells nothing of images.

    Returns:
        None where that is not known for this model and this processor: see :func:`not_known`.

    Raises:
        InvalidInput: the inputs are of another number of images.
    """
    places: list[int] = torch.nonzero(vision).flatten().tolist()
    if not places and not images:
        return []
    _check_count(inputs, len(images), len(places), config)
    processor = getattr(reader, "image_processor", None)
    if not _in_order(inputs, config, places[0]):
        return None
    grids = of_each(inputs, images, config, processor, len(places))
    if sum(len(one.places) for one in grids) != len(places) or len(grids) != len(images):
        return None
    starts = [sum(len(one.places) for one in grids[:i]) for i in range(len(grids))]
    return [
        _placed(one, places[start : start + len(one.places)])
        for one, start in zip(grids, starts, strict=True)
    ]


def not_known(config: PreTrainedConfig, reader: Any) -> str:
    """Says that it is not known where the tokens stand, and for which model and processor."""
    processor = getattr(reader, "image_processor", None)
    if processor is None:
        made = f"{type(reader).__name__}, which is no processor: give the one that made the inputs"
    else:
        made = type(processor).__name__
    return f"where visual tokens stand on an image is not known for {config.model_type} and {made}"


def _check_count(
    inputs: Mapping[str, Any], images: int, tokens: int, config: PreTrainedConfig
) -> None:
    made = count_of(inputs, config)
    if images != (images if made is None else made) or not images:
        said = "" if made is None else f" of {made} image(s)"
        raise InvalidInput(
            f"the prompt has {tokens} visual tokens{said}, and {images} image(s) were given. Give "
            "the images that the processor was given, in their order."
        )


def _in_order(inputs: Mapping[str, Any], config: PreTrainedConfig, first: int) -> bool:
    """Whether videos stand before images, if there are both."""
    both = frames_of_each(inputs) and inputs.get("pixel_values") is not None
    video = getattr(config, "video_token_id", getattr(config, "video_token_index", None))
    return not both or int(inputs["input_ids"][0, first]) == video


def _placed(one: ImageTokens, places: Sequence[int]) -> ImageTokens:
    grids = [grid._replace(places=tuple(places[i] for i in grid.places)) for grid in one.grids]
    return ImageTokens(tuple(places), tuple(grids))
