"""Vision tower of Qwen-VL (the first): a vision transformer, and a cross-attention that resamples
its patches to a fixed number of tokens.

Source: "Qwen-VL: A Versatile Vision-Language Model for Understanding, Localization, Text Reading,
and Beyond" (2023, arXiv:2308.12966), section 2.1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling


class QwenVLVisionConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes of the vision tower. ``output_size`` is the width of the text model, ``num_queries``
    the number of tokens per image, ``num_positions`` the size of the learned table of positions,
    which is interpolated to the patches. The last two are square numbers.
    """

    model_type = "foveate_qwen_vl_vision"
    base_config_key = "vision_config"

    def __init__(
        self,
        hidden_size: int = 1664,
        intermediate_size: int = 8192,
        num_hidden_layers: int = 48,
        num_attention_heads: int = 16,
        image_size: int = 448,
        patch_size: int = 14,
        output_size: int = 4096,
        num_queries: int = 256,
        num_resampler_heads: int = 32,
        num_positions: int = 256,
        layer_norm_eps: float = 1e-6,
        **options: Any,
    ):
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.image_size, self.patch_size = image_size, patch_size
        self.output_size, self.num_queries = output_size, num_queries
        self.num_resampler_heads, self.num_positions = num_resampler_heads, num_positions
        self.layer_norm_eps = layer_norm_eps
        super().__init__(**options)


class EyeAttention(nn.Module):
    """Multi-head attention of queries to all keys, without a mask."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, query: Float[Tensor, "n q c"], key: Float[Tensor, "n t c"], value: Tensor
    ) -> Float[Tensor, "n q c"]:
        """Return the attention output of each query over the values [n, t, c]."""
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        read = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.out_proj(read)
        return out


class EyeLayer(nn.Module):
    """Layer of the vision transformer."""

    def __init__(self, config: QwenVLVisionConfig):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.norm_1, self.norm_2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention = EyeAttention(width, config.num_attention_heads)
        self.fc1 = nn.Linear(width, config.intermediate_size)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(config.intermediate_size, width)

    def forward(self, hidden: Float[Tensor, "n t c"]) -> Float[Tensor, "n t c"]:
        """Apply attention and MLP to the patches, each after a layer norm."""
        normed = self.norm_1(hidden)
        hidden = hidden + self.attention(normed, normed, normed)
        inner: Tensor = self.fc2(self.act(self.fc1(self.norm_2(hidden))))
        return hidden + inner


class Resampler(nn.Module):
    """Cross-attention of learned queries to the patches. Both get the same table of positions,
    interpolated for the patches.
    """

    def __init__(self, config: QwenVLVisionConfig):
        super().__init__()
        width, eps = config.output_size, config.layer_norm_eps
        self.positions = nn.Parameter(torch.zeros(config.num_queries, width))
        self.queries = nn.Parameter(torch.zeros(config.num_queries, width))
        self.kv_proj: nn.Module = nn.Identity()
        if config.hidden_size != width:
            self.kv_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.attention = EyeAttention(width, config.num_resampler_heads)
        self.norm_q, self.norm_kv = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)

    def forward(self, patches: Float[Tensor, "n t d"]) -> Float[Tensor, "n q c"]:
        """Return one token per query."""
        value = self.norm_kv(self.kv_proj(patches))
        query = (self.norm_q(self.queries) + self.positions).expand(len(value), -1, -1)
        key = value + resize_table(self.positions, value.shape[1])
        read: Tensor = self.attention(query, key, value)
        return read


class QwenVLVisionModel(PreTrainedModel):
    """Vision tower from pixels to the tokens of an image."""

    config_class = QwenVLVisionConfig
    main_input_name = "pixel_values"
    input_modalities = "image"
    _no_split_modules = ["EyeLayer", "Resampler"]  # noqa: RUF012  # not a class variable there
    _supports_sdpa = True

    def __init__(self, config: QwenVLVisionConfig):
        super().__init__(config)
        width, eps = config.hidden_size, config.layer_norm_eps
        patch = config.patch_size
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=False)
        self.positions = nn.Parameter(torch.zeros(config.num_positions, width))
        self.norm_pre = nn.LayerNorm(width, eps=eps)
        self.layers = nn.ModuleList([EyeLayer(config) for _ in range(config.num_hidden_layers)])
        self.resampler = Resampler(config)
        self.norm_post = nn.LayerNorm(config.output_size, eps=eps)
        self.projection = nn.Linear(config.output_size, config.output_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the convolution that embeds the patches."""
        return self.patches

    def forward(
        self, pixel_values: Float[Tensor, "n 3 height width"], **options: Any
    ) -> BaseModelOutputWithPooling:
        """Return ``last_hidden_state`` [n, patches, hidden] and the tokens as ``pooler_output``
        [n, queries, output]. ``options`` for other outputs are ignored.
        """
        hidden = self.patches(pixel_values.to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)
        hidden = self.norm_pre(hidden + resize_table(self.positions, hidden.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden)
        tokens = self.projection(self.norm_post(self.resampler(hidden)))
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=tokens)


def resize_table(table: Float[Tensor, "s c"], patches: int) -> Float[Tensor, "t c"]:
    """Interpolate a square table of positions (bicubic, in float32) to a square of patches."""
    old, new = math.isqrt(table.shape[0]), math.isqrt(patches)
    if old == new:
        return table
    grid = table.float().reshape(old, old, -1).permute(2, 0, 1)[None]
    grid = interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)[0]
    return grid.permute(1, 2, 0).flatten(0, 1).to(table.dtype)
