"""From where on queries differ in what they attend to."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor


def from_first_hidden(visible: Bool[Tensor, "b #h w n"]) -> Bool[Tensor, "b #h w s"]:
    """The slots from the first that one of the queries does not attend to, as a copy."""
    # as a rule the window's own slots; bytes have a vectorised minimum, booleans none
    seen_by_all = visible.flatten(0, 2).view(torch.uint8).amin(0)
    first = int(seen_by_all.cumprod(0).sum())
    return visible[..., first:].clone()
