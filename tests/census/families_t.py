"""Families whose vision tower is one of timm's: a convolution stands in for it.

Their projector and decoder are the real ones; the tower only has to give features in its shape.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from . import media, media_special
from .media import Media, Picture
from .sizes import AFTER, BEFORE, IMAGE, TOWER, VIDEO
from .specimen import Entry

_SIDE = 12


class Maps(nn.Module):
    """Features as maps, ``[images, width, height, width]`` (FastViT, MobileNet)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.patches = nn.Conv2d(3, TOWER, kernel_size=4, stride=4)
        self.mixing = nn.Conv2d(TOWER, TOWER, kernel_size=3, padding=1)

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        maps = self.mixing(torch.tanh(self.patches(pixel_values)))
        return BaseModelOutputWithPooling(last_hidden_state=self.shaped(maps))

    def shaped(self, maps: Tensor) -> Tensor:
        return maps


class Tokens(Maps):
    """Features as tokens behind a class token (a perception encoder)."""

    def shaped(self, maps: Tensor) -> Tensor:
        tokens = maps.flatten(2).transpose(1, 2)
        return torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1)


def one_tile(_index: int, generator: Generator) -> Picture:
    """An image of one tile."""
    return {"pixel_values": torch.randn(1, 3, _SIDE, _SIDE, generator=generator)}


def answer_in_text(model: Any) -> None:
    """Gemma 3n has logits for the words of its images: none of them is ever an answer."""
    with torch.no_grad():
        model.lm_head.weight[160:] = 0.0


_GEMMA3N: dict[str, Any] = {
    "text_config": {
        "vocab_size": 200,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "laurel_rank": 8,
    },
    "vision_config": {"vocab_size": 16, "vocab_offset": 160},
    "audio_config": {
        "vocab_size": 16,
        "vocab_offset": 176,
        "input_feat_size": 16,
        "conf_num_attention_heads": 2,
        "conf_num_hidden_layers": 1,
        "sscp_conv_channel_size": [8, 8],
    },
    "vision_soft_tokens_per_image": 9,
    "image_token_id": 161,
    "eoi_token_id": 162,
    "audio_token_id": 177,
    "eoa_token_id": 178,
}

ENTRIES: dict[str, Entry] = {
    "fast_vlm": Entry(image=media.plain(9, _SIDE), tower=Maps),
    "gemma3n": Entry(
        overrides=_GEMMA3N,
        image=Media(
            media.square(_SIDE),
            lambda _picture: [BEFORE, *[161] * 9, 162],
            types=("token_type_ids",),
            kinds={161: 1},
        ),
        tower=Maps,
        prepare=answer_in_text,
    ),
    "perception_lm": Entry(
        overrides={"vision_config": {"model_args": {"embed_dim": TOWER}}},
        image=Media(one_tile, lambda _picture: [BEFORE, *[IMAGE] * 9, AFTER]),
        video=media_special.frames([VIDEO] * 18, side=_SIDE),
        tower=Tokens,
    ),
}
