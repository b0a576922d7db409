"""Families q to z."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator

from . import media, media_special
from .families_a import ROPE, SAM, SMALL_TOWER, mrope
from .families_f import ENTRIES as _F
from .families_i import ENTRIES as _I
from .media import Media, Picture
from .sizes import AFTER, BEFORE, HIDDEN, IMAGE, VIDEO, WINDOW
from .specimen import Entry


def _qwen(rope: dict[str, Any], by_frame: bool = True, **more: Any) -> Entry:
    """The Qwen-VL families: grids of patches, and positions of time, height and width."""
    frames = media.by_frame if by_frame else media.one_block
    overrides = {"text_config": {"rope_parameters": rope} | more.pop("text_config", {})} | more
    return Entry(overrides=overrides, image=media.grid(), video=media.clip(frames))


def _omni(rope: dict[str, Any]) -> Entry:
    """The thinkers of the omni families; their configuration lacks an id that their code reads."""
    seconds = {"video_second_per_grid": torch.tensor(1.0)}
    return Entry(
        overrides={
            "text_config": {"rope_parameters": rope},
            "audio_config": {"n_window": 8},
            "vision_start_token_id": BEFORE,
        },
        image=media.grid(types=()),
        video=media.clip(media.one_block, types=(), extra=seconds),
    )


def scaled(key: str, sample: media.Sample) -> media.Sample:
    """Adds by how much an image or video is merged (VideoLLaMA 3)."""
    return lambda index, generator: sample(index, generator) | {key: torch.tensor(2)}


def unsqueezed(_index: int, generator: Generator) -> Picture:
    """Video-LLaVA has a name of its own for the pixels of images."""
    return {"pixel_values_images": torch.randn(3, 12, 12, generator=generator)}


def compressed(index: int, generator: Generator) -> Picture:
    """A video of VideoLLaMA 3 of which one token is dropped."""
    base = media.clip(media.one_block, temporal=1).sample(index, generator)
    keep = torch.ones(8, dtype=torch.bool)
    keep[5] = False
    return base | {"video_merge_sizes": torch.tensor(2), "video_compression_mask": keep}


_PARTIAL = {"partial_rotary_factor": 0.5}
_LINEAR = mrope(2, 1, 1) | _PARTIAL
_GRID = media.grid(temporal=1, types=())

ENTRIES: dict[str, Entry] = {
    "qianfan_ocr": Entry(image=media.bordered(9)),
    "qwen2_5_omni_thinker": _omni(mrope(2, 3, 3)),
    "qwen2_5_vl": _qwen(mrope(2, 3, 3), by_frame=False),
    "qwen2_vl": _qwen(
        mrope(2, 3, 3), by_frame=False, vision_config={"hidden_size": HIDDEN, "mlp_ratio": 2}
    ),
    "qwen3_5": _qwen(_LINEAR),
    "qwen3_5_moe": _qwen(_LINEAR),
    "qwen3_omni_moe_thinker": _omni(mrope(4, 2, 2)),
    "qwen3_vl": _qwen(mrope(4, 2, 2)),
    "qwen3_vl_moe": _qwen(mrope(4, 2, 2)),
    "qwen4_exp": _qwen(
        mrope(4, 2, 2),
        text_config={
            "hc_lowrank": 8,
            "ple_embed_dim": 16,
            "ngram_vocab_size_base": 64,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 2,
            "heads_per_ngram": 2,
            "indexer_n_heads": 8,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 24,
            "indexer_compress_ratio": 4,
        },
    ),
    "shieldgemma2": _F["gemma3"],
    "smolvlm": _I["idefics3"],
    "step3p7": Entry(
        overrides={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
                "sliding_window": WINDOW,
                "num_sliding_attention_heads": 8,  # as released: not the number of the others
                "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
            },
            "vision_config": {"image_size": 48, "max_position_embeddings": 144, "mlp_ratio": 1.5},
        },
        image=media.plain(9, 48),
    ),
    "unlimited_ocr": Entry(
        overrides={
            "vision_config": {"sam_config": SAM, "encoder_config": {"image_size": 12}},
        },
        image=media.plain(13, 48),
    ),
    "video_llama_3": Entry(
        image=Media(scaled("image_merge_sizes", _GRID.sample), _GRID.ids, joined=_GRID.joined),
        video=Media(
            compressed,
            lambda _picture: [BEFORE, *[VIDEO] * 7, AFTER],
            joined=frozenset({"pixel_values_videos", "video_compression_mask"}),
        ),
    ),
    "video_llava": Entry(
        overrides=SMALL_TOWER,
        image=Media(unsqueezed, lambda _picture: [IMAGE] * 9),
        video=media_special.frames([VIDEO] * 20, side=12),
    ),
    "vipllava": Entry(
        # Early releases have the plural.
        overrides=SMALL_TOWER
        | {"vision_feature_layer": [-2, -1], "vision_feature_layers": [-2, -1]},
        image=media.plain(9, 12),
    ),
}
