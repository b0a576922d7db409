"""Models of several kinds, of hundreds of megabytes each, with the requests of ``fit.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from transformers import (
    CLIPImageProcessorPil,
    Gemma3Config,
    Gemma3ImageProcessorPil,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextImageProcessorPil,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    Qwen3VLMoeConfig,
)

from foveate.memory import Request


class Sample(NamedTuple):
    """Model configuration with its image processor and a request."""

    config: PreTrainedConfig
    processor: Any
    request: Request


TOWER: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6}
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    **TOWER,
    "num_attention_heads": 12,
    "image_size": 336,
    "patch_size": 14,
}
TEXT: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32064,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN: dict[str, Any] = {
    "hidden_size": 640,
    "intermediate_size": 1728,
    "out_hidden_size": 1024,
    "depth": 6,
    "num_heads": 8,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
MROPE: dict[str, Any] = {**ROPE, "mrope_section": [8, 12, 12]}
CROPPED: dict[str, Any] = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
}
PINPOINTS = [[336, 672], [672, 336], [672, 672]]
BOUNDS: dict[str, Any] = {"size": {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}}
SIZE, LARGE = (840, 560), (980, 700)


def llava() -> Sample:
    """Return LLaVA: one grid of 576 tokens per image."""
    text = {"model_type": "llama", **TEXT}
    config = LlavaConfig(vision_config=CLIP, text_config=text, image_token_index=32000)
    return Sample(config, CLIPImageProcessorPil(**CROPPED), Request(images=4, size=SIZE))


def llava_next() -> Sample:
    """Return LLaVA-NeXT: an overview and tiles."""
    text = {"model_type": "llama", **TEXT}
    config = LlavaNextConfig(
        vision_config=CLIP,
        text_config=text,
        image_token_index=32000,
        image_grid_pinpoints=PINPOINTS,
    )
    reader = LlavaNextImageProcessorPil(**CROPPED, image_grid_pinpoints=PINPOINTS)
    return Sample(config, reader, Request(images=2, size=SIZE))


def qwen2_vl() -> Sample:
    """Return Qwen2-VL: as many patches as the image has."""
    seen = {"embed_dim": 640, "hidden_size": 1024, "depth": 6, "num_heads": 8}
    text = {**TEXT, "rope_parameters": MROPE}
    config = Qwen2VLConfig(
        vision_config=seen, text_config=text, image_token_id=32001, video_token_id=32002
    )
    return Sample(config, Qwen2VLImageProcessorPil(**BOUNDS), Request(images=1, size=LARGE))


def qwen2_5_vl() -> Sample:
    """Return Qwen2.5-VL: windowed attention in all but one layer of the tower."""
    seen = {**QWEN, "fullatt_block_indexes": [3]}
    text = {**TEXT, "rope_parameters": MROPE}
    config = Qwen2_5_VLConfig(
        vision_config=seen, text_config=text, image_token_id=32001, video_token_id=32002
    )
    return Sample(config, Qwen2VLImageProcessorPil(**BOUNDS), Request(images=1, size=LARGE))


def internvl() -> Sample:
    """Return InternVL: tiles and a thumbnail."""
    seen = {**TOWER, "num_attention_heads": 12, "image_size": [448, 448], "patch_size": [14, 14]}
    text = {"model_type": "qwen2", **TEXT}
    config = InternVLConfig(vision_config=seen, text_config=text, image_token_id=32001)
    reader = GotOcr2ImageProcessorPil(
        size={"height": 448, "width": 448}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    return Sample(config, reader, Request(images=1, size=SIZE))


def gemma3() -> Sample:
    """Return Gemma 3: sliding windows beside full attention, bidirectional attention in images."""
    seen = {**TOWER, "num_attention_heads": 12, "image_size": 448, "patch_size": 14}
    text = {
        **TEXT,
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    }
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **seen},
        text_config=text,
        image_token_index=32000,
        boi_token_index=32001,
        eoi_token_index=32002,
    )
    reader = Gemma3ImageProcessorPil(size={"height": 448, "width": 448})
    return Sample(config, reader, Request(images=3, size=SIZE))


def qwen3_vl_moe() -> Sample:
    """Return Qwen3-VL-MoE: experts, and tower features added to the first layers."""
    seen = {**QWEN, "deepstack_visual_indexes": [1, 3, 5]}
    text = {
        **TEXT,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "rope_parameters": MROPE,
    }
    config = Qwen3VLMoeConfig(
        vision_config=seen, text_config=text, image_token_id=32001, video_token_id=32002
    )
    reader = Qwen2VLImageProcessorPil(**BOUNDS, patch_size=16)
    return Sample(config, reader, Request(images=1, size=LARGE))


MODELS: dict[str, Callable[[], Sample]] = {
    "LLaVA": llava,
    "LLaVA-NeXT": llava_next,
    "Qwen2-VL": qwen2_vl,
    "Qwen2.5-VL": qwen2_5_vl,
    "InternVL": internvl,
    "Gemma 3": gemma3,
    "Qwen3-VL-MoE": qwen3_vl_moe,
}
