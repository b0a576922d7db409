"""Conversion of tensors for kernels without gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def numbers(t: Float[Tensor, "*x"]) -> Float[Tensor, "*x"]:
    """Return ``t`` in float32 without gradients: usually ``t`` itself, with no torch call."""
    t = t.detach() if t.requires_grad else t
    return t if t.dtype == torch.float32 else t.float()
