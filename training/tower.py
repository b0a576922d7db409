"""The parts that are trained: a Pixtral vision tower and LLaVA's projector, stock classes both."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PixtralVisionConfig, PixtralVisionModel, PretrainedConfig
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from foveate.demo.scenes import CELL

MEAN, STD = 0.5, 0.25  # of pixels between 0 and 1


def vision_config() -> PixtralVisionConfig:
    """Six layers on patches of one cell."""
    return PixtralVisionConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_channels=3,
        image_size=CELL * 32,
        patch_size=CELL,
        hidden_act="silu",
        attention_dropout=0.0,
        rope_theta=1000.0,
    )


class Eye(nn.Module):
    """Pixels to the embeddings of the language model, one for every cell."""

    def __init__(self, text_config: PretrainedConfig):
        super().__init__()
        config = LlavaConfig(
            vision_config=vision_config(),
            text_config=text_config,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
        self.tower = PixtralVisionModel(config.vision_config)
        self.projector = LlavaMultiModalProjector(config)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [b, cells, hidden], and what the middle layer knows [b, cells, 256].

        The tower's own forward puts all images of a batch into one sequence; images of one size are
        a batch here, which is the same and faster.
        """
        tower = self.tower
        x = tower.patch_conv((pixels.float() / 255 - MEAN) / STD)
        rows, columns = x.shape[-2:]
        x = tower.ln_pre(x.flatten(2).transpose(1, 2))
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(x.device)
        turned = tower.patch_positional_embedding(x, place)
        middle = x
        for depth, layer in enumerate(tower.transformer.layers, 1):
            x = layer(x, None, position_embeddings=turned)
            if depth == len(tower.transformer.layers) // 2:
                middle = x
        return self.projector(x), middle
