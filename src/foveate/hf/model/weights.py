"""Which weights a model has, in a few letters, so that a profile can say whose it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from operator import itemgetter

import torch
from jaxtyping import BFloat16
from torch import Tensor, nn

from foveate.hf.model.adapters import applied_weights, is_adapted

EACH = 64  # numbers of a parameter that are looked at
PLAIN = (torch.float32, torch.bfloat16)


def weights_digest(model: nn.Module) -> str:
    """Of the largest of the first ``EACH`` numbers of every parameter, rounded to bfloat16: a model
    has the same one in float32 and in bfloat16. Adapters count while they are active. Empty where
    it cannot be told: weights in float16, which rounds otherwise, quantised ones, and offloaded
    ones.

    It is made anew every time, as weights that are written to through ``.data`` do not say so.
    """
    weights = _parameters(model)
    if any(weight.dtype not in PLAIN or weight.is_meta for weight in weights):
        return ""
    if not (weights := [one for one in weights if one.numel()]):
        return ""
    vector = torch.empty(len(weights), dtype=torch.bfloat16, device="cpu")
    for device in dict.fromkeys(one.device for one in weights):
        here = [place for place, one in enumerate(weights) if one.device == device]
        vector[here] = _largest([weights[place] for place in here]).cpu()
    raw = vector.view(torch.int16).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def _parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters that the model computes with, sorted by path, tied ones once."""
    named = sorted(model.named_parameters())
    offloaded = any(weight.is_meta for _, weight in named)
    if offloaded or not is_adapted(name for name, _ in named):
        return [weight for _, weight in named]
    own, adapters = applied_weights(model)
    first: dict[int, tuple[str, Tensor]] = {}
    groups: list[Mapping[str, Tensor | str]] = [own, *adapters.values()]
    for weights in groups:
        for path, weight in weights.items():
            if isinstance(weight, nn.Parameter):
                first.setdefault(id(weight), (path, weight))
    return [weight for _, weight in sorted(first.values(), key=itemgetter(0))]


@torch.no_grad()
def _largest(weights: Sequence[Tensor]) -> BFloat16[Tensor, "n"]:
    """One number of each: rounding may make two equal, never change their order. All weights go
    through each operation together, as a model has hundreds of them.
    """
    first = [one.flatten()[:EACH] for one in weights]
    sizes = torch.tensor([len(one) for one in first], dtype=torch.long, device="cpu")
    within = torch.arange(EACH, device="cpu").minimum(sizes[:, None] - 1)  # of short ones the last
    places = (sizes.cumsum(0) - sizes)[:, None] + within
    numbers = torch.cat(first).to(torch.bfloat16).abs()
    return numbers[places.to(numbers.device)].amax(1)
