"""The tiny models that are not transformers' own."""

from __future__ import annotations

from transformers import PreTrainedModel

from foveate.models import (
    MobileVLMConfig,
    MobileVLMForConditionalGeneration,
    QwenVLConfig,
    QwenVLForConditionalGeneration,
    QwenVLVisionConfig,
)

from . import images, text_models
from .family import AFTER_IMAGE, BEFORE_IMAGE, IMAGE, Family, Vision
from .text_models import HIDDEN
from .vision_models import PATCH, TOWER, clip_config


def mobilevlm() -> PreTrainedModel:
    """MobileVLM V2: 36 patches an image, pooled to 9 tokens."""
    config = MobileVLMConfig(
        vision_config=clip_config(24),
        text_config=text_models.llama_config(),
        image_token_index=IMAGE,
        image_seq_length=9,
        projector_grid=3,
    )
    return MobileVLMForConditionalGeneration(config)


def qwen_vl() -> PreTrainedModel:
    """Qwen-VL, the first: 36 patches an image, read by 9 queries."""
    eye = QwenVLVisionConfig(
        **TOWER,
        image_size=24,
        patch_size=PATCH,
        output_size=HIDDEN,
        num_queries=9,
        num_resampler_heads=2,
        num_positions=16,
    )
    config = QwenVLConfig(
        vision_config=eye,
        text_config=text_models.qwen2_config(),
        image_token_index=IMAGE,
        image_seq_length=9,
    )
    return QwenVLForConditionalGeneration(config)


SEEDS = (
    Family("mobilevlm", mobilevlm, Vision(images.square(24), images.constant(9))),
    Family(
        "qwen_vl",
        qwen_vl,
        Vision(
            images.square(24),
            images.constant(9),
            before=(BEFORE_IMAGE,),
            after=(AFTER_IMAGE,),
        ),
    ),
)
"""Families whose classes come with Foveate."""
