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
    """The whole matrix at once, and in one place: memory that is new to the process costs more,
    page by page, than what is done with it.
    """
    b, hq, w, d = q.shape
    h = k.shape[1]
    grouped = q.detach().reshape(b, h, (hq // h) * w, d).float() * scale
    logits = (grouped @ k.detach().float().transpose(2, 3)).view(b, h, hq // h, w, -1)
    # as a rule the slots of the window itself; bytes have a vectorised minimum, booleans none
    partly = visible.flatten(0, 2).view(torch.uint8).amin(0) == 0
    if partly.any():
        first, last = partly.nonzero()[[0, -1], 0].tolist()
        hidden = ~visible[:, :, None, :, first : last + 1]
        logits[..., first : last + 1].masked_fill_(hidden, -torch.inf)
    weights = softmax_n(logits, n) if n else torch.softmax(logits, -1, out=logits)
    if not partly.all():
        return weights  # every query sees something
    return weights.masked_fill_(~visible.any(-1)[:, :, None, :, None], 0.0)
