"""What kernels that give no gradients work on."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def numbers(t: Float[Tensor, "*x"]) -> Float[Tensor, "*x"]:
    """The numbers alone, in float32: as a rule ``t`` itself, without a call into torch."""
    t = t.detach() if t.requires_grad else t
    return t if t.dtype == torch.float32 else t.float()
