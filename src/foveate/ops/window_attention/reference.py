"""Plain torch: softmax in float32, whatever the inputs' dtype."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.softmax_n import softmax_n


def window_attention(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w n"],
    scale: float,
    n: float,
) -> Float[Tensor, "b h g w n"]:
    """The whole matrix at once."""
    b, hq, w, d = q.shape
    h = k.shape[1]
    grouped = q.reshape(b, h, (hq // h) * w, d).float()
    logits = (grouped @ k.float().transpose(2, 3)).view(b, h, hq // h, w, -1).mul_(scale)
    logits.masked_fill_(~visible[:, :, None], -torch.inf)
    weights = softmax_n(logits, n)
    sees = visible.any(-1)
    return weights if bool(sees.all()) else weights.masked_fill_(~sees[:, :, None, :, None], 0.0)
