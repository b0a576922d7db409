"""Visual tokens of a prompt's images, with their cells on the images."""

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
    """Return the tokens of each image of a prompt, in order, with their cells on the image.

    The processor's settings determine the resizing and cropping of an image, and the model's
    configuration the number of tokens. The result must agree with the prompt.

    Args:
        vision: True at the prompt's visual tokens.
        inputs: the processor's outputs.
        images: width and height of each image in pixels, before processing. Frames of videos come
            first, as the videos do in the prompt.
        config: the model's configuration.
        reader: the processor; a tokenizer has no settings for images.

    Returns:
        None if the grids of this model and processor are not known: see :func:`not_known`.

    Raises:
        InvalidInput: another number of images than in the inputs.
    """
    positions: list[int] = torch.nonzero(vision).flatten().tolist()
    if not positions and not images:
        return []
    _check_count(inputs, len(images), len(positions), config)
    processor = getattr(reader, "image_processor", None)
    if not _videos_first(inputs, config, positions[0]):
        return None
    grids = of_each(inputs, images, config, processor, len(positions))
    if sum(len(tokens.indices) for tokens in grids) != len(positions) or len(grids) != len(images):
        return None
    starts = [sum(len(tokens.indices) for tokens in grids[:i]) for i in range(len(grids))]
    return [
        _at_positions(tokens, positions[start : start + len(tokens.indices)])
        for tokens, start in zip(grids, starts, strict=True)
    ]


def not_known(config: PreTrainedConfig, reader: Any) -> str:
    """Return the message that tokens cannot be located for this model and processor."""
    processor = getattr(reader, "image_processor", None)
    if processor is None:
        name = f"{type(reader).__name__}, which is no processor: give the one that made the inputs"
    else:
        name = type(processor).__name__
    model = config.model_type
    return f"the positions of visual tokens on an image are not known for {model} and {name}"


def _check_count(
    inputs: Mapping[str, Any], images: int, tokens: int, config: PreTrainedConfig
) -> None:
    expected = count_of(inputs, config)
    if images != (images if expected is None else expected) or not images:
        total = "" if expected is None else f" of {expected} image(s)"
        raise InvalidInput(
            f"the prompt has {tokens} visual tokens{total}, and {images} image(s) were given. Give "
            "the images that the processor was given, in their order."
        )


def _videos_first(inputs: Mapping[str, Any], config: PreTrainedConfig, first: int) -> bool:
    """Return True unless an image comes before the first video of a prompt with both."""
    both = frames_of_each(inputs) and inputs.get("pixel_values") is not None
    video = getattr(config, "video_token_id", getattr(config, "video_token_index", None))
    return not both or int(inputs["input_ids"][0, first]) == video


def _at_positions(tokens: ImageTokens, positions: Sequence[int]) -> ImageTokens:
    grids = [
        grid._replace(indices=tuple(positions[i] for i in grid.indices)) for grid in tokens.grids
    ]
    return tokens._replace(indices=tuple(positions), grids=tuple(grids))
