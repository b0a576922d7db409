"""Which tokens of a prompt are visual, and which image each belongs to."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedConfig

from foveate.core.compress import image_index
from foveate.core.errors import InvalidInput

_NAMES = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


def visual_token_ids(config: PreTrainedConfig) -> list[int]:
    """The ids of the placeholders that image and video features replace; none in a text model."""
    ids = [getattr(config, name, None) for name in _NAMES]
    return sorted({i for i in ids if isinstance(i, int)})


def image_of_tokens(
    config: PreTrainedConfig,
    input_ids: Int[Tensor, "b t"] | None,
    vision: Tensor | None,
    shape: tuple[int, int],
) -> Int[Tensor, "b t"] | None:
    """Which image each of these tokens belongs to (-1: text); None where nothing tells.

    Raises:
        InvalidInput: ``vision`` has another shape than the tokens.
    """
    if vision is not None:
        if tuple(vision.shape) != shape:
            raise InvalidInput(
                f"vision has shape {tuple(vision.shape)}, but the prompt has {shape[0]} rows of "
                f"{shape[1]} tokens."
            )
        return image_index(vision.bool())
    if input_ids is None:
        return None
    ids = torch.tensor(visual_token_ids(config), device=input_ids.device)
    return image_index(torch.isin(input_ids, ids))
