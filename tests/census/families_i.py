"""Families i to l."""

from __future__ import annotations

from typing import Any

from tests.zoo.limits import before

from . import media, media_special
from .families_a import SMALL_TOWER
from .media import CHANNELS, Media
from .media_special import PINPOINTS
from .samples_i import (
    asked,
    cells,
    cubes,
    flattened,
    kimi_clip,
    merged,
    ragged,
    seen_images,
    where_images_are,
)
from .sizes import AFTER, BEFORE, HIDDEN, IMAGE, VIDEO
from .specimen import Entry

_PATCHES = frozenset({"pixel_values"})
_QFORMER: dict[str, Any] = {"num_query_tokens": 4, "image_token_index": IMAGE}
_INKLING2 = Entry(
    overrides={"vision_config": {"posemb_grid_size": 8, "projection_hidden_dim": 48}},
    image=Media(
        cells,
        lambda picture: [IMAGE] * int(picture["image_grid_thw"].prod()),
        joined=_PATCHES,
    ),
)
_MASKED = media_special.tile_stack(24, [BEFORE, *[IMAGE] * 9, BEFORE], "pixels")

ENTRIES: dict[str, Entry] = {
    "idefics": Entry(
        overrides={
            "cross_layer_interval": 2,
            "num_hidden_layers": 4,
            "alpha_initializer": "ones",
            "perceiver_config": {"hidden_size": HIDDEN},
            "vision_config": {"image_size": 12},
        },
        image=media_special.tile_stack(12, [BEFORE, IMAGE, BEFORE]),
        always=True,
        extend=seen_images,
    ),
    "idefics2": Entry(
        overrides={
            "perceiver_config": {
                "hidden_size": HIDDEN,
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 4,
                "resampler_head_dim": 16,
                "num_key_value_heads": 2,
            }
        },
        image=media_special.tile_stack(24, [BEFORE, *[IMAGE] * 4, BEFORE], "pixels"),
    ),
    "idefics3": Entry(image=_MASKED),
    "inkling2": _INKLING2,
    "inkling2_loop": Entry(
        overrides=_INKLING2.overrides
        | {
            "text_config": {
                "n_layers_per_attn_res_block": 1,
                "loop_layer_index_start": 1,
                "loop_layer_index_end": 2,
                "loop_num_passes": 2,
                "loop_gate_rank": 8,
            }
        },
        image=_INKLING2.image,
    ),
    "inkling_mm_model": Entry(
        overrides={"vision_config": {"n_layers": 4}},
        image=Media(cubes, lambda _picture: [BEFORE, *[IMAGE] * 6], joined=_PATCHES),
    ),
    "instructblip": Entry(
        overrides=_QFORMER | {"vision_config": {"image_size": 12}},
        image=Media(asked("pixel_values", (CHANNELS, 12, 12)), lambda _picture: [IMAGE] * 4),
        always=True,
    ),
    "instructblipvideo": Entry(
        overrides={
            "num_query_tokens": 4,
            "video_token_index": VIDEO,
            "vision_config": {"image_size": 12},
        },
        video=Media(asked("pixel_values", (2, CHANNELS, 12, 12)), lambda _picture: [VIDEO] * 8),
        always=True,
    ),
    "internvl": Entry(image=media.bordered(9)),
    "janus": Entry(
        overrides={
            "vision_config": {"image_size": 12, "projection_dim": HIDDEN, "num_image_tokens": 9},
            "vq_config": {
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "num_embeddings": 32,
                "latent_channels": 32,
                "projection_dim": HIDDEN,
                "image_token_embed_dim": HIDDEN,
            },
        },
        image=media.bordered(9, 12),
    ),
    "kimi_k25": Entry(
        image=media.grid(nested=True, types=()),
        # Stock 5.15.1 splits a video into frames that its encoder has merged.
        video=None
        if before("5.24") and not before("5.15")
        else Media(
            kimi_clip,
            lambda _picture: [BEFORE, *[VIDEO] * 4, AFTER],
            joined=frozenset({"pixel_values_videos"}),
        ),
    ),
    "kosmos-2": Entry(
        overrides={"latent_query_num": 4, "vision_config": {"image_size": 12}},
        image=media.plain(4, 12, before=(BEFORE,), after=(AFTER,)),
        extend=where_images_are,
    ),
    "kosmos-2.5": Entry(
        overrides={
            "latent_query_num": 4,
            "vision_config": {"patch_embed_hidden_size": 48, "max_num_patches": 16},
        },
        image=Media(flattened, lambda _picture: [BEFORE, *[IMAGE] * 4, AFTER]),
        extend=where_images_are,
    ),
    "lfm2_vl": Entry(
        overrides={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["conv", "full_attention"] * 2,
            }
        },
        image=Media(ragged, merged),
    ),
    "lfm3_vl": Entry(image=media.grid(types=()), video=media.clip(media.by_frame, types=())),
    "lighton_ocr": Entry(image=Media(media.sized(), merged)),
    "llama4": Entry(
        overrides={
            "vision_config": {
                "intermediate_size": 128,
                "vision_output_dim": 32,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
            },
            "text_config": {"moe_layers": [1]},
        },
        image=media.bordered(9),
    ),
    "llava": Entry(overrides=SMALL_TOWER, image=media.plain(9, 12)),
    "llava_next": Entry(
        overrides={"vision_config": {"image_size": 8}, "image_grid_pinpoints": PINPOINTS},
        image=media_special.tiled(),
    ),
    "llava_next_video": Entry(
        overrides={"vision_config": {"image_size": 8}, "image_grid_pinpoints": PINPOINTS},
        image=media_special.tiled(),
        video=media_special.frames([VIDEO] * 2, side=8),
    ),
    "llava_onevision": Entry(
        overrides={"vision_config": {"image_size": 8}, "image_grid_pinpoints": PINPOINTS},
        image=media_special.tiled(),
        video=media_special.frames([VIDEO] * 3, side=8),
    ),
}
