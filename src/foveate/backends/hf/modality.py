"""Which tokens of a prompt are visual."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedConfig

from foveate.errors import InvalidInput

_NAMES = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


def visual_token_ids(config: PreTrainedConfig) -> list[int]:
    """The ids of the placeholders that image and video features replace; none in a text model."""
    ids = [getattr(config, name, None) for name in _NAMES]
    return sorted({i for i in ids if isinstance(i, int)})


def visual_tokens(
    config: PreTrainedConfig, input_ids: Int[Tensor, "b t"] | None
) -> Bool[Tensor, "b t"] | None:
    """True at placeholders of images and videos; None where there are no ids to tell."""
    if input_ids is None:
        return None
    ids = torch.tensor(visual_token_ids(config), device=input_ids.device)
    return torch.isin(input_ids, ids)


def given_visual_tokens(
    vision: Tensor, rows: int, prompt_end: int, columns: slice
) -> Bool[Tensor, "b t"]:
    """The part of the caller's ``vision`` that these columns are, a row for each beam.

    Raises:
        InvalidInput: ``vision`` has another shape than the prompt.
    """
    if vision.ndim != 2 or rows % vision.shape[0] or vision.shape[1] != prompt_end:
        raise InvalidInput(
            f"vision has shape {tuple(vision.shape)}, but the prompt has {rows} rows of "
            f"{prompt_end} tokens."
        )
    return vision.bool().repeat_interleave(rows // vision.shape[0], dim=0)[:, columns]
