"""Families a to e."""

from __future__ import annotations

from typing import Any

from . import media
from .media import Media
from .samples_a import chameleon_words, emu3_words, ernie_types, fewer_queries, two_resolutions
from .shrink import DROP
from .sizes import AFTER, BEFORE, HIDDEN, IMAGE, TOWER
from .specimen import Entry

ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
"""Plain rotary parameters."""

SMALL_TOWER: dict[str, Any] = {"vision_config": {"image_size": 12}}
"""Images of 3 by 3 patches, for families that do not merge them."""

SAM: dict[str, Any] = {
    "image_size": 48,
    "window_size": 6,
    "global_attn_indexes": [1],
    "downsample_channels": [24, 32],
    "scale": 16,
}
"""A SAM tower: one windowed and one global layer, 12 by 12 patches."""


def mrope(*section: int) -> dict[str, Any]:
    """Rotary parameters with the frequencies of a head split over time, height and width."""
    return ROPE | {"mrope_section": list(section)}


_VQ = {
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
    "embed_dim": 16,
    "latent_channels": 16,
}

ENTRIES: dict[str, Entry] = {
    "apertus1p5": Entry(
        overrides={
            "text_config": {"rope_parameters": ROPE},
            "vision_config": _VQ | {"codebook_size": 32, "attn_resolutions": [], "resolution": 6},
            "audio_config": {
                "codebook_dim": 32,
                "codebook_size": 32,
                "num_filters": 4,
                "num_lstm_layers": 1,
                "decoder_hidden_size": 32,
                "decoder_intermediate_size": 48,
                "decoder_num_layers": 1,
                "decoder_attention_num_groups": 4,
            },
            "image_token_offset": 90,
            "audio_token_offset": 122,
        },
        image=Media(media.sized(6, ((6, 6),)), lambda _picture: [BEFORE, *[IMAGE] * 9, AFTER]),
    ),
    "aria": Entry(
        overrides={
            "projector_patch_to_query_dict": {36: 9},
            "max_value_projector_patch_to_query_dict": 9,
        },
        image=media.plain(9),
    ),
    "aya_vision": Entry(image=media.bordered(9)),
    "blip": Entry(
        overrides={
            "text_config": {"bos_token_id": 1, "sep_token_id": 2, "encoder_hidden_size": 32},
            "vision_config": {"image_size": 12},
        },
        image=Media(media.square(12), lambda _picture: ()),
        images=1,
        always=True,
    ),
    "blip-2": Entry(
        overrides={"image_token_index": IMAGE, "qformer_config": {"vocab_size": DROP}},
        image=media.plain(4),
        images=2,
        always=True,
    ),
    "chameleon": Entry(
        overrides={
            "vq_config": _VQ | {"num_embeddings": 64, "resolution": 6},
            "vocabulary_map": chameleon_words(),
        },
        image=media.bordered(9, 6),
    ),
    "cohere2_vision": Entry(image=media.bordered(9)),
    "cohere_compass": Entry(
        overrides={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {
                    "full_attention": mrope(4, 2, 2),
                    "sliding_attention": mrope(4, 2, 2),
                },
            }
        },
        image=media.grid(),
        video=media.clip(media.by_frame),
    ),
    "cosmos3_edge": Entry(
        overrides={"text_config": {"rope_parameters": mrope(4, 2, 2)}},
        image=media.grid(temporal=1),
        video=media.clip(media.by_frame, temporal=1),
    ),
    "cosmos3_omni": Entry(
        overrides={"text_config": {"rope_parameters": mrope(4, 2, 2)}},
        image=media.grid(),
        video=media.clip(media.by_frame),
    ),
    "deepseek_ocr2": Entry(
        overrides={
            "vision_config": {
                "sam_config": SAM,
                "encoder_config": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2},
            },
            "text_config": {
                "num_experts_per_tok": 2,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
        },
        image=media.plain(10, 48),
        prepare=fewer_queries,
    ),
    "deepseek_vl": Entry(overrides=SMALL_TOWER, image=media.plain(9, 12)),
    "deepseek_vl_hybrid": Entry(
        overrides=SMALL_TOWER | {"high_res_vision_config": SAM},
        image=Media(two_resolutions, lambda _picture: [IMAGE] * 9),
    ),
    "dots3_note": Entry(
        overrides={
            "text_config": {
                "swa_num_attention_heads": 2,
                "swa_num_key_value_heads": 2,
                "swa_q_lora_rank": 24,
                "swa_kv_lora_rank": 24,
                "swa_head_dim": 20,
                "swa_qk_nope_head_dim": 12,
                "swa_v_head_dim": 16,
            },
            "vision_config": {
                "pyramid_num_routed": [-1, 4],
                "mlp_layer_types": DROP,
                "num_hidden_layers": 2,
                "adapter_in_dim": 32,
                "adapter_out_dim": HIDDEN,
            },
            "audio_config": {"adapter_input_size": TOWER},
        },
        image=media.grid(temporal=1, types=()),
        video=media.clip(media.by_frame, temporal=1, types=()),
    ),
    "emu3": Entry(
        overrides={
            "vq_config": _VQ
            | {"codebook_size": 64, "hidden_size": 32, "temporal_downsample_factor": 1},
            "text_config": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
            "vocabulary_map": emu3_words(),
        },
        image=Media(media.sized(6, ((6, 6),)), lambda _picture: [BEFORE, *[IMAGE] * 12, AFTER]),
    ),
    "ernie4_5_vl_moe": Entry(
        overrides={
            "text_config": {"rope_parameters": mrope(3, 3, 2), "moe_intermediate_size": [32, 24]},
            "vision_config": {"depth": 2},
        },
        image=media.grid(temporal=1),
        video=media.clip(media.one_block, temporal=1, steps=4),
        extend=ernie_types,
    ),
    "evolla": Entry(),
    "exaone4_5": Entry(
        overrides={"text_config": {"sliding_window_pattern": DROP}},
        image=media.grid(types=()),
        video=media.clip(media.one_block, types=()),
    ),
}
