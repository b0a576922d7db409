"""Tensors as JSON takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

DIGITS = 4


def rows_of(found: Iterable[Tensor]) -> list[Any]:
    """Numbers of four digits, row by row; NaN is null."""
    return [short(one.detach().double().cpu().tolist()) for one in found]


def short(value: Any) -> Any:
    """A number, or lists of them, of four digits."""
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if value == value else None
