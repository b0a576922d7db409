"""Families f to h."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers

from . import media, media_special
from .families_a import ROPE, mrope
from .media import Media
from .media_special import PINPOINTS
from .sizes import AFTER, BEFORE, HIDDEN, IMAGE, PATCH, VIDEO
from .specimen import Entry, Inputs


def _framed(count: int) -> list[int]:
    """GLM's videos: frames between image borders, with image placeholders, in a video's borders."""
    frame = [BEFORE, *[IMAGE] * count, AFTER, 30]
    return [7, *frame, *frame, 8]


def _glm(section: tuple[int, int, int] = (2, 3, 3), partial: float = 1.0) -> Entry:
    """The GLM-V families: a Qwen-VL tower with a downsampling convolution."""
    rope = mrope(*section) | {"partial_rotary_factor": partial}
    video = media.clip(_framed)
    return Entry(
        overrides={"text_config": {"rope_parameters": rope}},
        image=media.grid(),
        video=Media(
            video.sample, video.ids, video.joined, types=video.types, kinds={IMAGE: 2, VIDEO: 2}
        ),
    )


def fuyu_names(inputs: Inputs) -> Inputs:
    """Early releases have a name of their own for the pixels, and are told their places."""
    names = inspect.signature(transformers.FuyuForCausalLM.forward).parameters
    if "image_patches_indices" not in names or "pixel_values" not in inputs:
        return inputs
    rest = {key: value for key, value in inputs.items() if key != "pixel_values"}
    ids, pixels = inputs["input_ids"], inputs["pixel_values"]
    here = ids == IMAGE
    places = torch.where(here, here.cumsum(-1) - 1, -1)
    by_row = pixels.reshape(ids.shape[0], -1, pixels.shape[-1])
    return rest | {"image_patches": by_row, "image_patches_indices": places}


_GEMMA4_TEXT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
}

_SAM: dict[str, Any] = {"image_size": 48, "window_size": 6, "global_attn_indexes": [1]}

ENTRIES: dict[str, Entry] = {
    "diffusion_gemma": Entry(
        overrides={
            "text_config": {
                **_GEMMA4_TEXT,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 32,
            },
            "vision_config": {"pooling_kernel_size": 2},
            "canvas_length": 8,
        },
        image=media_special.placed(3 * PATCH * PATCH),
        single=True,
    ),
    "fuyu": Entry(
        overrides={"text_config": {"num_key_value_heads": 4}, "patch_size": PATCH},
        image=Media(media_special.strips(9), lambda _picture: [*[IMAGE] * 9, BEFORE]),
        extend=fuyu_names,
    ),
    "gemma3": Entry(
        overrides={"mm_tokens_per_image": 9},
        image=media.plain(9, before=(BEFORE,), after=(AFTER,), types=("token_type_ids",)),
    ),
    "gemma4": Entry(
        start={"vision_config": {"model_type": "gemma4_vision"}},
        overrides={
            "text_config": _GEMMA4_TEXT,
            "vision_config": {"pooling_kernel_size": 2},
        },
        image=media_special.placed(3 * PATCH * PATCH),
        video=media_special.placed_frames(3 * PATCH * PATCH),
    ),
    "gemma4_unified": Entry(
        start={"vision_config": {"model_type": "gemma4_unified_vision"}},
        overrides={
            "text_config": _GEMMA4_TEXT,
            "vision_config": {
                "patch_size": 2,
                "pooling_kernel_size": 2,
                "mm_embed_dim": HIDDEN,
                "mm_posemb_size": 64,
                "output_proj_dims": HIDDEN,
            },
        },
        image=media_special.placed(3 * 16, side=3, pool=1),
        video=media_special.placed_frames(3 * 16, side=2, pool=1),
    ),
    "git": Entry(
        overrides={
            "hidden_size": HIDDEN,
            "num_hidden_layers": 3,
            "vision_config": {"image_size": 12},
        },
        image=Media(media.square(12), lambda _picture: ()),
        images=1,
        single=True,
    ),
    "glm46v": _glm(),
    "glm4v": _glm(),
    "glm4v_moe": _glm((2, 1, 1), 0.5),
    "glm5_next": Entry(
        overrides={
            "text_config": {"index_kpool": 4},
            "vision_config": {"projection_intermediate_size": 48, "out_hidden_size": HIDDEN},
        },
        image=media.grid(),
        video=media.clip(_framed),
    ),
    "glm_ocr": _glm(),
    "glmga": _glm(),
    "got_ocr2": Entry(overrides={"vision_config": _SAM}, image=media.bordered(9, 48)),
    "granite4_vision": Entry(
        overrides={
            "text_config": {"num_hidden_layers": 4},
            "vision_config": {"hidden_size": 64, "image_size": 16, "num_hidden_layers": 3},
            "qformer_config": {"num_hidden_layers": 1, "encoder_hidden_size": 64},
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-2, 1], [-1, 2]],
            "spatial_vision_layer": -1,
            "spatial_target_layers": [0, 1, 2, 3],
            "image_grid_pinpoints": [[2 * side for side in pair] for pair in PINPOINTS],
        },
        image=media_special.tiled(16),
    ),
    "granite_docling": Entry(
        overrides={"vision_config": {"scale_factor": 2}},
        image=media_special.tile_stack(24, [BEFORE, *[IMAGE] * 9, AFTER], "tiles"),
    ),
    "hunyuan_vl": Entry(
        overrides={
            "text_config": {
                "head_dim": 16,
                "rope_parameters": ROPE | {"mrope_section": [2, 2, 2, 2]},
            },
            "vision_config": {"max_image_size": 48, "min_image_size": 8, "img_max_token_num": 64},
            "im_start_id": 12,
            "im_end_id": 13,
            "im_newline_id": 14,
        },
        image=media.grid(temporal=1, line=1, around=2),
    ),
    "hy_v4_vl": Entry(
        overrides={
            "text_config": {"rope_parameters": mrope(2, 1, 1)},
            "vision_config": {"max_image_size": 48},
        },
        image=media.grid(temporal=1, line=1),
    ),
    "hyperclovax_vision_v2": Entry(
        image=media.grid(types=()), video=media.clip(media.one_block, types=())
    ),
}
