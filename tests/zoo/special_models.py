"""The tiny vision-language families with positions or attention of their own kind."""

from __future__ import annotations

from typing import Any

from transformers import (
    MllamaConfig,
    MllamaForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from . import images
from .family import AFTER_IMAGE, BEFORE_IMAGE, IMAGE, VIDEO, VOCAB, Family, Vision
from .text_models import HIDDEN, SIZE

PATCH = 4
GRIDS = ((4, 6), (4, 4), (6, 6))
"""Patch grids of Qwen-VL images: 6, 4 and 9 tokens."""

_IDS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEFORE_IMAGE,
    "vision_end_token_id": AFTER_IMAGE,
}
_TOWER: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": PATCH}
_QWEN3_TOWER: dict[str, Any] = _TOWER | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}


def _rope(*section: int) -> dict[str, Any]:
    """Rotary parameters with the head's 8 frequencies split over time, height and width."""
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(section)}


def qwen2_vl() -> PreTrainedModel:
    """Qwen2-VL."""
    config = Qwen2VLConfig(
        vision_config=_TOWER | {"embed_dim": 32, "hidden_size": HIDDEN, "mlp_ratio": 2},
        text_config=SIZE | {"rope_parameters": _rope(2, 3, 3)},
        **_IDS,
    )
    return Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl() -> PreTrainedModel:
    """Qwen2.5-VL: one windowed and one full layer in the tower."""
    config = Qwen2_5_VLConfig(
        vision_config=_TOWER
        | {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": HIDDEN,
            "window_size": 4 * PATCH,
            "fullatt_block_indexes": [1],
        },
        text_config=SIZE | {"rope_parameters": _rope(2, 3, 3)},
        **_IDS,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> PreTrainedModel:
    """Qwen3-VL: tower features are also added behind the first two text layers."""
    text = SIZE | {"head_dim": 16, "rope_parameters": _rope(4, 2, 2)}
    config = Qwen3VLConfig(vision_config=_QWEN3_TOWER, text_config=text, **_IDS)
    return Qwen3VLForConditionalGeneration(config)


def qwen3_vl_moe() -> PreTrainedModel:
    """Qwen3-VL with experts."""
    text = SIZE | {
        "head_dim": 16,
        "rope_parameters": _rope(4, 2, 2),
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    config = Qwen3VLMoeConfig(vision_config=_QWEN3_TOWER, text_config=text, **_IDS)
    return Qwen3VLMoeForConditionalGeneration(config)


MLLAMA_IMAGE = VOCAB
"""Mllama's placeholder is past the vocabulary of the head: it has an embedding, but no logit."""

MLLAMA_TILES = 2
MLLAMA_RATIOS = ((1, 1), (1, 2), (2, 1))


def mllama() -> PreTrainedModel:
    """Mllama: the third of four layers attends to the images, of 5 vision tokens a tile."""
    config = MllamaConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 8,
            "patch_size": PATCH,
            "max_num_tiles": MLLAMA_TILES,
            "intermediate_layers_indices": [0],
            "vision_output_dim": 64,
            "supported_aspect_ratios": [list(ratio) for ratio in MLLAMA_RATIOS],
        },
        text_config=SIZE
        | {"num_hidden_layers": 4, "cross_attention_layers": [2], "bos_token_id": 1},
        image_token_index=MLLAMA_IMAGE,
    )
    return MllamaForConditionalGeneration(config)


def _qwen(name: str) -> Family:
    makes = {
        "qwen2_vl": qwen2_vl,
        "qwen2_5_vl": qwen2_5_vl,
        "qwen3_vl": qwen3_vl,
        "qwen3_vl_moe": qwen3_vl_moe,
    }
    vision = Vision(
        images.patches(PATCH, GRIDS),
        images.merged_tokens(),
        layout="patches",
        before=(BEFORE_IMAGE,),
        after=(AFTER_IMAGE,),
        types="mm_token_type_ids",
    )
    return Family(name, makes[name], vision)


MROPE = tuple(_qwen(name) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"))
"""Families whose positions have a time, a height and a width."""

CROSS = (
    Family(
        "mllama",
        mllama,
        Vision(
            images.aspect_tiles(8, MLLAMA_TILES, MLLAMA_RATIOS),
            images.constant(1),
            layout="rows",
            leading=True,
            image_id=MLLAMA_IMAGE,
        ),
    ),
)
"""Families that read their images through cross attention."""
