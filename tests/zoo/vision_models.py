"""The tiny vision-language families around a CLIP, SigLIP or InternViT tower."""

from __future__ import annotations

from typing import Any

from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3VisionConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedModel,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMVisionConfig,
)

from . import images, text_models
from .family import AFTER_IMAGE, BEFORE_IMAGE, IMAGE, VIDEO, VOCAB, Family, Vision

TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
PATCH = 4
PINPOINTS = [[8, 16], [16, 8], [16, 16]]
ANYRES_SIZES = ((8, 16), (16, 8), (16, 12))


def clip_config(size: int) -> CLIPVisionConfig:
    """A CLIP tower for images of ``size`` pixels."""
    return CLIPVisionConfig(**TOWER, image_size=size, patch_size=PATCH, projection_dim=32)


def siglip_config(size: int) -> SiglipVisionConfig:
    """A SigLIP tower for images of ``size`` pixels."""
    return SiglipVisionConfig(**TOWER, image_size=size, patch_size=PATCH, vision_use_head=False)


def llava() -> PreTrainedModel:
    """LLaVA: 9 tokens an image, of a 3 by 3 grid."""
    config = LlavaConfig(
        vision_config=clip_config(12),
        text_config=text_models.llama_config(),
        image_token_index=IMAGE,
        image_seq_length=9,
    )
    return LlavaForConditionalGeneration(config)


def llava_deepseek() -> PreTrainedModel:
    """LLaVA on DeepSeek-V3, whose cache stores latents that all heads share."""
    config = LlavaConfig(
        vision_config=clip_config(12),
        text_config=text_models.deepseek_v3_config(),
        image_token_index=IMAGE,
        image_seq_length=9,
    )
    return LlavaForConditionalGeneration(config)


def llava_next() -> PreTrainedModel:
    """LLaVA-NeXT: an overview of 4 tokens and tiles with line ends."""
    config = LlavaNextConfig(
        vision_config=clip_config(8),
        text_config=text_models.llama_config(),
        image_token_index=IMAGE,
        image_grid_pinpoints=PINPOINTS,
        image_seq_length=4,
    )
    return LlavaNextForConditionalGeneration(config)


def llava_onevision() -> PreTrainedModel:
    """LLaVA-OneVision: as LLaVA-NeXT, with a SigLIP tower and a Qwen2 backbone."""
    config = LlavaOnevisionConfig(
        vision_config=siglip_config(8),
        text_config=text_models.qwen2_config(),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=PINPOINTS,
    )
    return LlavaOnevisionForConditionalGeneration(config)


def internvl() -> PreTrainedModel:
    """InternVL3: 9 tokens an image."""
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(**TOWER, image_size=(24, 24), patch_size=(PATCH, PATCH)),
        text_config=text_models.qwen2_config(),
        image_token_id=IMAGE,
        image_seq_length=9,
        tie_word_embeddings=False,
    )
    return InternVLForConditionalGeneration(config)


def idefics3() -> PreTrainedModel:
    """Idefics3: 9 tokens an image."""
    config = Idefics3Config(
        vision_config=Idefics3VisionConfig(**TOWER, image_size=24, patch_size=PATCH),
        text_config=text_models.llama_config(),
        image_token_id=IMAGE,
    )
    return Idefics3ForConditionalGeneration(config)


def smolvlm() -> PreTrainedModel:
    """SmolVLM: 9 tokens an image."""
    config = SmolVLMConfig(
        vision_config=SmolVLMVisionConfig(**TOWER, image_size=24, patch_size=PATCH),
        text_config=text_models.llama_config(),
        image_token_id=IMAGE,
    )
    return SmolVLMForConditionalGeneration(config)


def gemma3() -> PreTrainedModel:
    """Gemma 3: 9 tokens an image, which see each other in both directions."""
    config = Gemma3Config(
        vision_config=siglip_config(24),
        text_config=text_models.gemma3_config(),
        mm_tokens_per_image=9,
        boi_token_index=BEFORE_IMAGE,
        eoi_token_index=AFTER_IMAGE,
        image_token_index=IMAGE,
        tie_word_embeddings=False,
    )
    return Gemma3ForConditionalGeneration(config)


def paligemma() -> PreTrainedModel:
    """PaliGemma: 9 tokens an image, a prompt that sees itself in both directions."""
    config = PaliGemmaConfig(
        vision_config=siglip_config(12),
        text_config=text_models.gemma_config(),
        image_token_index=IMAGE,
        vocab_size=VOCAB,
        projection_dim=text_models.HIDDEN,
        hidden_size=text_models.HIDDEN,
        tie_word_embeddings=False,
    )
    return PaliGemmaForConditionalGeneration(config)


def _anyres(size: int = 8) -> Vision:
    return Vision(
        sample=images.tiles(size, PINPOINTS, ANYRES_SIZES),
        tokens=images.tile_tokens(size, PATCH, PINPOINTS),
    )


def _masked() -> Vision:
    return Vision(
        images.masked_square(24),
        images.constant(9),
        layout="rows",
        before=(BEFORE_IMAGE,),
        after=(BEFORE_IMAGE,),
    )


_BORDERS: dict[str, Any] = {"before": (BEFORE_IMAGE,), "after": (AFTER_IMAGE,)}
_NINE = images.constant(9)

VISION = (
    Family("llava", llava, Vision(images.square(12), _NINE)),
    Family("llava_deepseek", llava_deepseek, Vision(images.square(12), _NINE)),
    Family("llava_next", llava_next, _anyres()),
    Family("llava_onevision", llava_onevision, _anyres()),
    Family("internvl", internvl, Vision(images.square(24), _NINE, **_BORDERS)),
    Family("idefics3", idefics3, _masked()),
    Family("smolvlm", smolvlm, _masked()),
    Family("gemma3", gemma3, Vision(images.square(24), _NINE, types="token_type_ids", **_BORDERS)),
    Family(
        "paligemma",
        paligemma,
        Vision(images.square(12), _NINE, types="token_type_ids", prefix=True),
    ),
)
"""Families whose images come out of a plain vision tower."""
