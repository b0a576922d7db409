"""The kinds of processors and models, with settings of published checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Gemma3Config,
    Glm4vConfig,
    Glm4vImageProcessorPil,
    Idefics3ImageProcessorPil,
    InternVLConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextImageProcessorPil,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessorPil,
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

from foveate.models import MobileVLMConfig

from .eyes import (
    Eye,
    internvl_tiles,
    merged,
    next_tiles,
    one_grid,
    onevision_tiles,
    pixtral_lines,
    pooled,
    split_tiles,
)

BLACK = {"do_normalize": False, "image_mean": [0.0] * 3}  # padding is black, white is 1
CLIP = CLIPVisionConfig(image_size=336, patch_size=14)
SIGLIP = SiglipVisionConfig(image_size=384, patch_size=14)
CROPPED: dict[str, Any] = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
    **BLACK,
}
PIXTRAL = PixtralVisionConfig(image_size=1024, patch_size=16)
LLAVA = LlavaConfig(vision_config=CLIP)
SMOL = SmolVLMConfig(vision_config={"image_size": 512, "patch_size": 16}, scale_factor=4)
NEXT_SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]

_MADE: dict[str, Callable[[], Eye]] = {
    "LLaVA-1.5, crop": lambda: Eye(CLIPImageProcessorPil(**CROPPED), LLAVA, one_grid),
    "LLaVA-1.5, pad": lambda: Eye(LlavaImageProcessorPil(do_pad=True, **CROPPED), LLAVA, one_grid),
    "MobileVLM": lambda: Eye(
        LlavaImageProcessorPil(do_pad=True, **CROPPED),
        MobileVLMConfig(vision_config=CLIP),
        pooled(12),
    ),
    "SigLIP with a rest": lambda: Eye(
        SiglipImageProcessorPil(size={"height": 384, "width": 384}, **BLACK),
        LlavaConfig(vision_config=SIGLIP),
        one_grid,
    ),
    "Gemma 3": lambda: Eye(
        SiglipImageProcessorPil(size={"height": 896, "width": 896}, **BLACK),
        Gemma3Config(vision_config={"image_size": 896, "patch_size": 14}),
        pooled(16),
    ),
    "LLaVA-NeXT": lambda: Eye(
        LlavaNextImageProcessorPil(image_grid_pinpoints=NEXT_SIZES, **CROPPED),
        LlavaNextConfig(vision_config=CLIP, image_grid_pinpoints=NEXT_SIZES),
        next_tiles,
    ),
    "LLaVA-OneVision": lambda: Eye(
        LlavaOnevisionImageProcessorPil(**BLACK),
        LlavaOnevisionConfig(vision_config={"image_size": 384, "patch_size": 16}),
        onevision_tiles,
    ),
    "InternVL": lambda: Eye(
        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, **BLACK),
        InternVLConfig(),
        internvl_tiles,
        options=("crop_to_patches",),
    ),
    "InternVL, whole": lambda: Eye(
        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, **BLACK),
        InternVLConfig(),
        internvl_tiles,
    ),
    "SmolVLM": lambda: Eye(
        Idefics3ImageProcessorPil(
            size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}, **BLACK
        ),
        SMOL,
        split_tiles,
    ),
    "Qwen2-VL": lambda: Eye(Qwen2VLImageProcessorPil(**BLACK), Qwen2VLConfig(), merged),
    "GLM-4V": lambda: Eye(Glm4vImageProcessorPil(**BLACK), Glm4vConfig(), merged),
    "Pixtral": lambda: Eye(
        PixtralImageProcessorPil(**BLACK), LlavaConfig(vision_config=PIXTRAL), pixtral_lines
    ),
    "Mistral 3": lambda: Eye(
        PixtralImageProcessorPil(patch_size=28, size={"longest_edge": 1540}, **BLACK),
        Mistral3Config(vision_config=PixtralVisionConfig(image_size=1540, patch_size=14)),
        pixtral_lines,
    ),
}


def _eyes() -> dict[str, Eye]:
    """All of them; with older releases of transformers those that need no torchvision."""
    found = {}
    for name, make in _MADE.items():
        try:
            found[name] = make()
        except ImportError as error:
            if "Torchvision" not in str(error):
                raise
    return found


EYES = _eyes()
