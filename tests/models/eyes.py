"""What each visual token sees, from the pixels that real processors make and in the order in which
transformers' own models make tokens of them: an oracle that shares nothing with what it judges.

Settings are those of the published checkpoints. No model has weights: what its code does with
features does not depend on them.
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
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Gemma3Config,
    Glm4vConfig,
    Glm4vImageProcessorPil,
    Idefics3ImageProcessorPil,
    InternVLConfig,
    InternVLModel,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextImageProcessorPil,
    LlavaNextModel,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionModel,
    Mistral3Config,
    PixtralImageProcessorPil,
    PixtralVisionConfig,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    SmolVLMConfig,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

from foveate.models import MobileVLMConfig

BLACK = {"do_normalize": False, "image_mean": [0.0] * 3}  # padding is black, white is 1
CLIP = CLIPVisionConfig(image_size=336, patch_size=14)
SIGLIP = SiglipVisionConfig(image_size=384, patch_size=14)
CROPPED: dict[str, Any] = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
    **BLACK,
}
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


PIXTRAL = PixtralVisionConfig(image_size=1024, patch_size=16)
LLAVA = LlavaConfig(vision_config=CLIP)
SMOL = SmolVLMConfig(vision_config={"image_size": 512, "patch_size": 16}, scale_factor=4)
NEXT_SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]

EYES = {
    "LLaVA-1.5, crop": Eye(CLIPImageProcessorPil(**CROPPED), LLAVA, one_grid),
    "LLaVA-1.5, pad": Eye(LlavaImageProcessorPil(do_pad=True, **CROPPED), LLAVA, one_grid),
    "MobileVLM": Eye(
        LlavaImageProcessorPil(do_pad=True, **CROPPED),
        MobileVLMConfig(vision_config=CLIP),
        pooled(12),
    ),
    "SigLIP with a rest": Eye(
        SiglipImageProcessorPil(size={"height": 384, "width": 384}, **BLACK),
        LlavaConfig(vision_config=SIGLIP),
        one_grid,
    ),
    "Gemma 3": Eye(
        SiglipImageProcessorPil(size={"height": 896, "width": 896}, **BLACK),
        Gemma3Config(vision_config={"image_size": 896, "patch_size": 14}),
        pooled(16),
    ),
    "LLaVA-NeXT": Eye(
        LlavaNextImageProcessorPil(image_grid_pinpoints=NEXT_SIZES, **CROPPED),
        LlavaNextConfig(vision_config=CLIP, image_grid_pinpoints=NEXT_SIZES),
        next_tiles,
    ),
    "LLaVA-OneVision": Eye(
        LlavaOnevisionImageProcessorPil(**BLACK),
        LlavaOnevisionConfig(vision_config={"image_size": 384, "patch_size": 16}),
        onevision_tiles,
    ),
    "InternVL": Eye(
        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, **BLACK),
        InternVLConfig(),
        internvl_tiles,
        options=("crop_to_patches",),
    ),
    "InternVL, whole": Eye(
        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, **BLACK),
        InternVLConfig(),
        internvl_tiles,
    ),
    "SmolVLM": Eye(
        Idefics3ImageProcessorPil(
            size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}, **BLACK
        ),
        SMOL,
        split_tiles,
    ),
    "Qwen2-VL": Eye(Qwen2VLImageProcessorPil(**BLACK), Qwen2VLConfig(), merged),
    "GLM-4V": Eye(Glm4vImageProcessorPil(**BLACK), Glm4vConfig(), merged),
    "Pixtral": Eye(
        PixtralImageProcessorPil(**BLACK), LlavaConfig(vision_config=PIXTRAL), pixtral_lines
    ),
    "Mistral 3": Eye(
        PixtralImageProcessorPil(patch_size=28, size={"longest_edge": 1540}, **BLACK),
        Mistral3Config(vision_config=PixtralVisionConfig(image_size=1540, patch_size=14)),
        pixtral_lines,
    ),
}
