"""Families m to p."""

from __future__ import annotations

from typing import Any

from . import media, media_special
from .families_a import SMALL_TOWER, mrope
from .families_f import ENTRIES as _F
from .media import Media, Picture
from .samples_i import merged
from .samples_m import (
    aspects,
    counted,
    crossed,
    hw_patches,
    long_strip,
    pooled,
    pooled_frames,
    strip_of_frames,
    turned,
)
from .shrink import DROP
from .sizes import AFTER, BEFORE, HIDDEN, IMAGE, PATCH, TOWER, VIDEO, VOCAB
from .specimen import Entry


def _minicpm(merge: int, types: tuple[str, ...] = ()) -> Entry:
    """MiniCPM-V on Qwen3.5: linear and full layers, ``merge`` by ``merge`` patches a token."""

    def ids(picture: Picture) -> list[int]:
        return [BEFORE, *[IMAGE] * int((picture["target_sizes"] // merge).prod()), AFTER]

    return Entry(
        overrides={
            "insert_layer_id": 0,
            "patch_size": PATCH,
            "image_size": 24,
            "image_start_id": BEFORE,
            "image_end_id": AFTER,
            "slice_start_id": 12,
            "slice_end_id": 13,
            "newline_id": 14,
        },
        image=Media(long_strip, ids, joined=frozenset({"pixel_values"}), types=types),
        video=Media(
            strip_of_frames,
            lambda _picture: [BEFORE, *[VIDEO] * (32 // merge**2), AFTER],
            joined=frozenset({"pixel_values_videos"}),
            types=types,
        ),
        extend=turned,
    )


_MLLAMA: dict[str, Any] = {
    "vision_config": {
        "num_hidden_layers": 1,
        "num_global_layers": 1,
        "image_size": 8,
        "max_num_tiles": 2,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 64,
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
    },
    "text_config": {
        "num_hidden_layers": 4,
        "cross_attention_layers": [2],
        "bos_token_id": 1,
    },
    "image_token_index": VOCAB,
}

_PIXTRAL = Media(media.sized(), merged)
_PATCHES = frozenset({"pixel_values"})

ENTRIES: dict[str, Entry] = {
    "minicpm_ocr": _minicpm(2),
    "minicpmv4_6": _minicpm(4),
    "minicpmv4_7": _minicpm(4, ("mm_token_type_ids",)),
    "minimax_m3_vl": Entry(
        overrides={
            "text_config": {
                "rotary_dim": 8,
                "index_n_heads": 2,
                "index_block_size": 8,
                "index_topk_blocks": 2,
                "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            "merged_hidden_size": 4 * HIDDEN,
        },
        image=media.grid(types=()),
        video=media.clip(media.by_frame, types=()),
    ),
    "mistral3": Entry(image=_PIXTRAL),
    "mistral_large4": Entry(image=_PIXTRAL),
    "mllama": Entry(
        overrides=_MLLAMA,
        image=Media(aspects, lambda _picture: [VOCAB], by_row=True, leading=True),
        extend=crossed,
    ),
    "molmo2": Entry(
        overrides={
            "adapter_config": {
                "vision_feature_layer": [1, 0],
                "head_dim": 16,
                "text_hidden_size": HIDDEN,
            },
            "text_config": {"additional_vocab_size": 16},
            "vision_config": {"num_position_embeddings": 36},
            "image_patch_id": IMAGE,
        },
        image=Media(
            pooled,
            lambda _picture: [BEFORE, *[IMAGE] * 9, AFTER],
            joined=frozenset({"pixel_values", "image_token_pooling"}),
            types=("mm_token_type_ids",),
        ),
        video=Media(
            pooled_frames,
            lambda _picture: [*[BEFORE, *[IMAGE] * 9, AFTER] * 2],
            joined=frozenset({"pixel_values_videos", "video_token_pooling"}),
            types=("mm_token_type_ids",),
        ),
        extend=counted,
    ),
    "muse_glimmer": Entry(
        overrides={"out_hidden_size": 4 * TOWER},
        image=media.grid(types=()),
        video=media.clip(media.by_frame, types=()),
    ),
    "muse_spark": Entry(
        overrides={
            "out_hidden_size": 4 * TOWER,
            "audio_config": {
                "num_hidden_layers": 4,
                "hidden_sizes": [16] * 4,
                "depths": [1] * 4,
                "out_hidden_size": HIDDEN,
            },
        },
        image=media.grid(types=()),
        video=media.clip(media.by_frame, types=()),
    ),
    "nemotron_h_omni": Entry(
        overrides={
            "text_config": {"layers_block_type": DROP},
            "vision_config": {
                "patch_dim": 48,
                "video_patch_dim": 96,
                "max_img_size": 48,
                "num_registers": 2,
                "num_cls_tokens": 1,
                "summary_idxs": [0],
                "video_temporal_patch_size": 2,
            },
            "vision_hidden_size": TOWER,
        },
        image=Media(
            hw_patches,
            lambda picture: [IMAGE] * (int(picture["image_grid_hw"].prod()) // 4),
            joined=_PATCHES,
        ),
        video=media_special.tubelets(18),
    ),
    "ovis2": Entry(
        overrides={
            "vision_config": {"image_size": 12, "vocab_size": 32},
            "visual_indicator_token_ids": [12, 13, 14, 15, 16],
            "hidden_size": HIDDEN,
            "vocab_size": VOCAB,
        },
        image=media.plain(9, 12, before=(12,), after=(13,)),
    ),
    "paddleocr_vl": Entry(
        overrides={"text_config": {"rope_parameters": mrope(2, 3, 3)}},
        image=media.grid(temporal=1, nested=True),
    ),
    "paligemma": Entry(
        overrides=SMALL_TOWER
        | {"hidden_size": HIDDEN, "vocab_size": VOCAB}
        | {"text_config": {"num_key_value_heads": 2}},
        image=Media(
            media.square(12),
            lambda _picture: [IMAGE] * 9,
            types=("token_type_ids",),
            kinds={},
            answer=1,
        ),
    ),
    "pi0": Entry(reason="it is a policy that predicts actions: it has no generate"),
    "pp_chart2table": _F["got_ocr2"],
}
