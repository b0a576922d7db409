"""Sizes of stored pairs in bytes, computed before they exist, for budgets in bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

COLUMN = torch.int32.itemsize
COUNT = torch.int64.itemsize  # of a head's count or start


class Form(NamedTuple):
    """Numbers of heads, sizes of a key and a value, and the dtype of one layer's pairs."""

    heads: int
    query_heads: int
    key: int
    value: int
    dtype: torch.dtype

    @classmethod
    def of(cls, query_heads: int, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"]) -> Form:
        """Return the form of a layer's tensors. Values of another dtype (index keys may be float32
        in a model in half precision) count as so many numbers of the keys' dtype.
        """
        value = v.shape[3] * v.dtype.itemsize // k.dtype.itemsize
        return cls(k.shape[1], query_heads, k.shape[3], value, k.dtype)

    @property
    def pair(self) -> int:
        """Bytes of one head's key and value of a token."""
        return (self.key + self.value) * self.dtype.itemsize


def uncompressed_bytes(form: Form, rows: int, columns: int) -> int:
    """Return the bytes of uncompressed pairs: with padding, without listed columns."""
    return rows * form.heads * columns * form.pair


def exact_bytes(counts: Int[Tensor, "b h"], pair: int, spare: int = 0) -> int:
    """Return the bytes of kept pairs in full precision.

    Pairs are dense if all heads have the same number, otherwise ragged, with each head's start.

    Args:
        counts: kept pairs per row and KV head.
        pair: bytes of one pair.
        spare: further pairs that every head has room for.
    """
    distinct = set(counts.flatten().tolist())
    starts = (counts.numel() + 1) * COUNT if len(distinct) > 1 else 0
    return int(counts.sum()) * (pair + COLUMN) + counts.numel() * spare * pair + starts
