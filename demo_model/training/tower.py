"""Parts that are trained first: a Pixtral vision tower and LLaVA's projector."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from foveate_demo.processor import normalised
from foveate_demo.vision import llava_config


class Eye(nn.Module):
    """Vision tower and projector: from pixels to one embedding per cell."""

    def __init__(self, text_config: PreTrainedConfig):
        super().__init__()
        config = llava_config(copy.deepcopy(text_config), image_token=0)
        # a few hundred patches: plain products are faster than the fused kernels
        self.tower = AutoModel.from_config(config.vision_config, attn_implementation="eager")
        self.projector = LlavaMultiModalProjector(config)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings [b, cells, hidden], and the middle layer's states [b, cells, 256].

        The tower's own forward concatenates all images into one sequence. Here images of one size
        form a batch, with the same result, but faster.
        """
        tower = self.tower
        x = tower.patch_conv(normalised(pixels))
        rows, columns = x.shape[-2:]
        x = tower.ln_pre(x.flatten(2).transpose(1, 2))
        positions = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(x.device)
        turned = tower.patch_positional_embedding(x, positions)
        middle = x
        for depth, layer in enumerate(tower.transformer.layers, 1):
            x = layer(x, None, position_embeddings=turned)
            if depth == len(tower.transformer.layers) // 2:
                middle = x
        return self.projector(x), middle
