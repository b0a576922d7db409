"""What each visual token sees, from the pixels that real processors make and in the order in which
transformers' own models make tokens of them: an oracle that shares nothing with what it judges.

No model has weights: what its code does with features does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    InternVLModel,
    LlavaNextModel,
    LlavaOnevisionModel,
)
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

BREAK = float("nan")  # what a token sees that ends a line


@dataclass(frozen=True)
class Eye:
    """A processor, a model's configuration, and how that model makes tokens of the pixels: their
    mean brightness from 0 to 1, :data:`BREAK` at ends of lines; in the prompt's order.
    """

    processor: Any
    config: Any
    tokens: Callable[[Any, dict[str, Any]], Tensor]
    options: tuple[str, ...] = ()

    def sees(self, image: Image.Image) -> tuple[dict[str, Any], Tensor]:
        """The inputs, and what each visual token sees."""
        given = dict.fromkeys(self.options, True)
        inputs = dict(self.processor([image], return_tensors="pt", **given))
        return inputs, self.tokens(self.config, inputs)


def patches(pixels: Tensor, side: int) -> Tensor:
    """[n, 3, h, w] to the mean of each patch, [n, rows, columns]."""
    return torch.nn.functional.avg_pool2d(pixels.float(), side).mean(1)


def one_grid(config: Any, inputs: dict[str, Any]) -> Tensor:
    return patches(inputs["pixel_values"], config.vision_config.patch_size).flatten()


def pooled(side: int) -> Callable[[Any, dict[str, Any]], Tensor]:
    def pool(config: Any, inputs: dict[str, Any]) -> Tensor:
        grid = patches(inputs["pixel_values"], config.vision_config.patch_size)
        return torch.nn.functional.adaptive_avg_pool2d(grid, side).flatten()

    return pool


def next_tiles(config: Any, inputs: dict[str, Any]) -> Tensor:
    return packed(config, inputs, LlavaNextModel, vision_feature_select_strategy="default")


def onevision_tiles(config: Any, inputs: dict[str, Any]) -> Tensor:
    return packed(config, inputs, LlavaOnevisionModel)


def packed(config: Any, inputs: dict[str, Any], model: Any, **options: Any) -> Tensor:
    tiles = patches(inputs["pixel_values"][0], config.vision_config.patch_size)
    (found,), _ = model.pack_image_features(
        SimpleNamespace(config=config),
        [tiles.flatten(1)[..., None]],
        inputs["image_sizes"],
        image_newline=torch.tensor([BREAK]),
        **options,
    )
    return found[:, 0]


def internvl_tiles(config: Any, inputs: dict[str, Any]) -> Tensor:
    tiles = patches(inputs["pixel_values"], config.vision_config.patch_size[0])[..., None]
    return InternVLModel.pixel_shuffle(None, tiles, config.downsample_ratio).mean(-1).flatten()


def split_tiles(config: Any, inputs: dict[str, Any]) -> Tensor:
    tiles = patches(inputs["pixel_values"][0], config.vision_config.patch_size).flatten(1)
    shuffle = SmolVLMConnector.pixel_shuffle
    return shuffle(None, tiles[..., None], config.scale_factor).mean(-1).flatten()


def merged(config: Any, inputs: dict[str, Any]) -> Tensor:
    many = config.vision_config.spatial_merge_size**2
    return inputs["pixel_values"].float().mean(-1).view(-1, many).mean(-1)


def pixtral_lines(config: Any, inputs: dict[str, Any]) -> Tensor:
    """Its lines end with other tokens than visual ones: see ``mask``."""
    side = config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1)
    height, width = (length // side for length in inputs["image_sizes"][0])
    return patches(inputs["pixel_values"], side)[0, :height, :width].flatten()


def mask(eye: Eye, inputs: dict[str, Any], tokens: int) -> Tensor:
    """A prompt of two words, the image and a word: True at visual tokens."""
    image = torch.ones(tokens).bool()
    if eye.tokens is pixtral_lines:
        side = eye.config.vision_config.patch_size * getattr(eye.config, "spatial_merge_size", 1)
        lines = image.view(-1, int(inputs["image_sizes"][0][1]) // side)
        image = torch.nn.functional.pad(lines, (0, 1)).flatten()
    return torch.nn.functional.pad(image, (2, 1))
