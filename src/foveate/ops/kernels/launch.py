"""Launch helpers of every Triton kernel: checks, sizes of tiles, memory for results.

Importing this module imports Triton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from foveate.errors import UnsupportedKernel

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""True if kernels run on a CPU, slowly: TRITON_INTERPRET=1 was set when Triton was imported."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 256
TILE = 16 * 2**10  # bytes: all tiles of a kernel fit in the 99 KiB that every GPU has
STAGES = 2  # tiles in flight: one is loaded while another is processed
LOG2E = math.log2(math.e)  # logits are scaled to base 2, because GPUs compute exp2


def check(operator: str, *tensors: Tensor, others: Sequence[Tensor] = ()) -> None:
    """Check the tensors of an operator.

    ``tensors`` need one float dtype that the kernels support, one GPU (or the CPU, interpreted),
    and last dimensions of 1 to 256. ``others`` only need the same device.

    Raises:
        UnsupportedKernel: a requirement is not met.
    """
    remedy = f"Use impl='reference' for {operator}."
    first = tensors[0]
    kinds = {(t.device, t.dtype) for t in tensors}
    if len(kinds) > 1 or any(t.device != first.device for t in others):
        listed = ", ".join(f"{t.dtype} on {t.device}" for t in (*tensors, *others))
        raise UnsupportedKernel(f"tensors of different kinds: {listed}. {remedy}")
    if first.device.type != "cuda" and not (first.device.type == "cpu" and INTERPRETED):
        raise UnsupportedKernel(
            f"Triton kernels run on a GPU, and these tensors are on {first.device}. {remedy} "
            "(To try the kernels on a CPU, set TRITON_INTERPRET=1 before Triton is imported.)"
        )
    if first.dtype not in FLOATS:
        raise UnsupportedKernel(f"{first.dtype} is none of float32, float16, bfloat16. {remedy}")
    for width in (t.shape[-1] for t in tensors):
        if not 1 <= width <= WIDEST:
            raise UnsupportedKernel(f"head size {width} is not within 1 to {WIDEST}. {remedy}")


def run(kernel: Any, programs: int, like: Tensor, *arguments: Any, **settings: Any) -> None:
    """Launch ``programs`` programs on the device of ``like``; a model may be on several devices."""
    if programs == 0:
        return
    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        kernel[(programs,)](*arguments, num_stages=STAGES, **settings)


def empty(*shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate memory for a kernel, which must write every element that is read later."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def strided(x: Tensor) -> tuple[Any, ...]:
    """Return a tensor and its strides as one argument of a kernel, which supports any strides."""
    return x, *x.stride()


def power(size: int, least: int = 16) -> int:
    """Return the power of two that a tile of ``size`` has along this axis; tl.dot needs 16."""
    return max(least, 1 << max(0, size - 1).bit_length())


def rows(x: Tensor, limit: int = 64) -> int:
    """Return the number of rows of a tile of ``x``, as wide as a head: 16 to ``limit``."""
    return max(16, min(limit, TILE // (power(x.shape[-1]) * x.element_size())))
