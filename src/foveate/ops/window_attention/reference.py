"""Plain torch: softmax in float32, whatever the inputs' dtype."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.softmax_n import softmax_n
from foveate.ops.window_attention.hidden import from_first_hidden


def window_attention(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    scale: float,
    n: float,
) -> Float[Tensor, "b h g w n"]:
    """The whole matrix at once, and in one place: memory that is new to the process costs more,
    page by page, than what is done with it.
    """
    b, hq, w, d = q.shape
    h = k.shape[1]
    grouped = q.detach().reshape(b, h, (hq // h) * w, d).float() * scale
    logits = (grouped @ k.detach().float().transpose(2, 3)).view(b, h, hq // h, w, -1)
    slots = k.shape[2]
    if visible.shape[-1] == slots:
        visible = from_first_hidden(visible)
    before = slots - visible.shape[-1]
    logits[..., before:].masked_fill_(~visible[:, :, None], -torch.inf)
    weights = softmax_n(logits, n) if n else torch.softmax(logits, -1, out=logits)
    if before:
        return weights  # every query sees something
    return weights.masked_fill_(~visible.any(-1)[:, :, None, :, None], 0.0)
