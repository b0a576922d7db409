"""What every Triton kernel needs around it: checks, sizes of tiles, room for results.

Importing this module imports Triton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.errors import UnsupportedKernel

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Kernels run on a CPU, slowly: TRITON_INTERPRET=1 was set when Triton was imported."""

_EMULATED = tl.constexpr(INTERPRETED)

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 256
TILE = 16 * 2**10  # bytes: all tiles that a kernel holds fit in the 99 KiB that every GPU has
STAGES = 2  # of these, being loaded or worked on
LOG2E = math.log2(math.e)  # logits are taken to the base 2, in which GPUs exponentiate


def check(operator: str, *tensors: Tensor, beside: Sequence[Tensor] = ()) -> None:
    """All of one float type that the kernels know, on one GPU (or on the CPU, interpreted), their
    last dimensions 1 to 256; what stands ``beside`` them is on the same device.

    Raises:
        UnsupportedKernel: names what is not so, and the way out.
    """
    instead = f"Use impl='reference' for {operator}."
    first = tensors[0]
    kinds = {(t.device, t.dtype) for t in tensors}
    if len(kinds) > 1 or any(t.device != first.device for t in beside):
        listed = ", ".join(f"{t.dtype} on {t.device}" for t in (*tensors, *beside))
        raise UnsupportedKernel(f"tensors of different kinds: {listed}. {instead}")
    if first.device.type != "cuda" and not (first.device.type == "cpu" and INTERPRETED):
        raise UnsupportedKernel(
            f"Triton kernels run on a GPU, and these tensors are on {first.device}. {instead} "
            "(To try the kernels on a CPU, set TRITON_INTERPRET=1 before Triton is imported.)"
        )
    if first.dtype not in FLOATS:
        raise UnsupportedKernel(f"{first.dtype} is none of float32, float16, bfloat16. {instead}")
    for width in (t.shape[-1] for t in tensors):
        if not 1 <= width <= WIDEST:
            raise UnsupportedKernel(f"head size {width} is not within 1 to {WIDEST}. {instead}")


def run(kernel: Any, programs: int, like: Tensor, *arguments: Any, **settings: Any) -> None:
    """Launches ``programs`` programs on the device of ``like``; a model may stand on several."""
    if programs == 0:
        return
    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        kernel[(programs,)](*arguments, num_stages=STAGES, **settings)


def empty(*shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Room for a kernel to write to: it has to write every element that is read later."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def power(size: int, least: int = 16) -> int:
    """The power of two that a tile of ``size`` has along this axis; products of tiles need 16."""
    return max(least, 1 << max(0, size - 1).bit_length())


def rows(x: Tensor, most: int = 64) -> int:
    """Rows of a tile of ``x``, a whole head wide: 16 to ``most``."""
    return max(16, min(most, TILE // (power(x.shape[-1]) * x.element_size())))


@triton.jit
@no_type_check  # Triton reads the source itself, and its types are not Python's
def tile(base, row, column, row_stride, column_stride, row_end, width):
    """Part of a matrix, zeros beyond its ends. Offsets in 64 bits: caches pass 2^31 elements."""
    at = row.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    return tl.load(base + at, mask=(row < row_end)[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
@no_type_check
def product(a, b):
    """Of two tiles, added up in float32. The interpreter would multiply the bits of bfloat16."""
    if _EMULATED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
