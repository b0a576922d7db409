"""MobileVLM V2: a Llama with CLIP, and a projector that drops three of four visual tokens.

Source: "MobileVLM V2: Faster and Stronger Baseline for Vision Language Model" (2024,
arXiv:2402.03766), section 3. All parts except the projector are LLaVA's.
"""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaModel


class MobileVLMConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """LLaVA's configuration, plus ``projector_grid``: the rows and columns of an image's tokens."""

    model_type = "foveate_mobilevlm_v2"

    def __init__(self, projector_grid: int = 12, **options: Any):
        self.projector_grid = projector_grid
        super().__init__(**options)


class LDPv2(nn.Module):
    """Lightweight downsample projector, version 2 (section 3.3 of the paper): two pointwise layers,
    average pooling to a fixed grid, and a depthwise convolution that encodes positions.
    """

    def __init__(self, config: MobileVLMConfig):
        super().__init__()
        seen: int = config.vision_config.hidden_size  # type: ignore[union-attr]
        width: int = config.text_config.hidden_size  # type: ignore[union-attr]
        self.linear_1 = nn.Linear(seen, width)
        self.act = nn.GELU()
        self.linear_2 = nn.Linear(width, width)
        self.pool = nn.AdaptiveAvgPool2d(config.projector_grid)
        self.positions = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width)

    def forward(self, features: Float[Tensor, "n t d"]) -> Float[Tensor, "n tokens c"]:
        """Return the grid's tokens, row by row. The patches must form a square."""
        side = math.isqrt(features.shape[1])
        hidden = self.linear_2(self.act(self.linear_1(features)))
        grid = self.pool(hidden.transpose(1, 2).unflatten(2, (side, side)))
        grid = grid + self.positions(grid)
        tokens: Tensor = grid.flatten(2).transpose(1, 2)
        return tokens


class MobileVLMModel(LlavaModel):
    """MobileVLM V2 without its language-model head."""

    def __init__(self, config: MobileVLMConfig):
        super().__init__(config)
        self.multi_modal_projector = LDPv2(config)  # type: ignore[assignment]
        self.post_init()  # type: ignore[no-untyped-call]


class MobileVLMForConditionalGeneration(LlavaForConditionalGeneration):
    """MobileVLM V2 with its language-model head."""

    config_class = MobileVLMConfig

    def __init__(self, config: MobileVLMConfig):
        super(LlavaForConditionalGeneration, self).__init__(config)
        self.model = MobileVLMModel(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)  # type: ignore[union-attr]
        self.post_init()  # type: ignore[no-untyped-call]
