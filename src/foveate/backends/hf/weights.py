"""Which weights a model has, in a few letters, so that a profile can say whose it is."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

EACH = 64  # numbers of a parameter that are looked at
PLAIN = (torch.float32, torch.bfloat16)


def weights_digest(model: nn.Module) -> str:
    """Of the largest of the first ``EACH`` numbers of every parameter, rounded to bfloat16: a model
    has the same one in float32 and in bfloat16. Empty where it cannot be told: weights in float16,
    which rounds otherwise, quantised ones, and such as are on no device.
    """
    weights = [weight for _, weight in sorted(model.named_parameters())]
    if any(one.dtype not in PLAIN or one.is_meta for one in weights):
        return ""
    found = [_largest(one.detach()) for one in weights if one.numel()]
    if not found:
        return ""
    devices = {one.device for one in found}
    numbers = found if len(devices) > 1 else [*torch.stack(found).cpu()]
    raw = torch.stack([one.cpu() for one in numbers]).view(torch.int16).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def _largest(weight: Tensor) -> Tensor:
    """One of them: rounding may make two equal, never change their order."""
    return weight.flatten()[:EACH].to(torch.bfloat16).abs().amax()
