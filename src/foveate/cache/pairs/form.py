"""What pairs take, in bytes, before there are any: what budgets in bytes are worked out from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

COLUMN = torch.int32.itemsize
WHOLE = torch.int64.itemsize  # of what counts, or says where heads start


class Form(NamedTuple):
    """One layer's pairs: the number of KV and query heads, the sizes of a key and a value, and what
    their numbers are.
    """

    heads: int
    query_heads: int
    key: int
    value: int
    dtype: torch.dtype

    @classmethod
    def of(cls, query_heads: int, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"]) -> Form:
        """That of a layer's tensors."""
        return cls(k.shape[1], query_heads, k.shape[3], v.shape[3], k.dtype)

    @property
    def pair(self) -> int:
        """Bytes of one head's key and value of a token."""
        return (self.key + self.value) * self.dtype.itemsize


def whole_bytes(form: Form, rows: int, columns: int) -> int:
    """Of pairs of which none has gone: padding is held as well, and no column is listed."""
    return rows * form.heads * columns * form.pair


def exact_bytes(counts: Int[Tensor, "b h"], pair: int, spare: int = 0) -> int:
    """Of kept pairs of ``pair`` bytes in full precision, and room for ``spare`` more in every head:
    dense where all heads hold the same number, otherwise ragged, with each head's start.
    """
    each = set(counts.flatten().tolist())
    starts = (counts.numel() + 1) * WHOLE if len(each) > 1 else 0
    return int(counts.sum()) * (pair + COLUMN) + counts.numel() * spare * pair + starts
