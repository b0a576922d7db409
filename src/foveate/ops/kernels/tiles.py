"""Device functions shared by kernels: tiles of matrices, and their products."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from foveate.ops.kernels.launch import INTERPRETED

_EMULATED = tl.constexpr(INTERPRETED)


@triton.jit
@no_type_check  # Triton reads the source itself, and its types are not Python's
def of_head(x, b, h):
    """Return the matrix of one head of a :func:`strided` argument, for :func:`tile`."""
    return x[0] + b * x[1] + h * x[2], x[3], x[4]


@triton.jit
@no_type_check
def tile(matrix, row, column, row_end, width):
    """Load part of a matrix, zeros beyond its ends. 64-bit offsets: caches exceed 2^31 elements."""
    base, row_stride, column_stride = matrix
    at = row.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    return tl.load(base + at, mask=(row < row_end)[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
@no_type_check
def product(a, b):
    """Multiply two tiles with sums in float32. The interpreter multiplies bits of bfloat16."""
    if _EMULATED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
