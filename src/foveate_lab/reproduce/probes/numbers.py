"""Tensors as JSON takes them, and which places of a long row are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

DIGITS = 4


def evenly(count: int, most: int) -> Int[Tensor, "places"]:
    """At most so many of ``count`` places, evenly from the first to the last."""
    places = torch.linspace(0, count - 1, min(most, count), dtype=torch.float32, device="cpu")
    return places.round().long()


def rows_of(tensors: Iterable[Tensor]) -> list[Any]:
    """Numbers of four digits, row by row; NaN is null."""
    return [short(one.detach().double().cpu().tolist()) for one in tensors]


def short(value: Any) -> Any:
    """A number, or lists of them, of four digits."""
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if value == value else None
