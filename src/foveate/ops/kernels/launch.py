"""What every Triton kernel needs around it: checks, sizes of tiles, room for results.

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
"""Kernels run on a CPU, slowly: TRITON_INTERPRET=1 was set when Triton was imported."""

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


def strided(x: Tensor) -> tuple[Any, ...]:
    """A tensor with its strides, as one argument of a kernel: it may have any."""
    return x, *x.stride()


def power(size: int, least: int = 16) -> int:
    """The power of two that a tile of ``size`` has along this axis; products of tiles need 16."""
    return max(least, 1 << max(0, size - 1).bit_length())


def rows(x: Tensor, most: int = 64) -> int:
    """Rows of a tile of ``x``, a whole head wide: 16 to ``most``."""
    return max(16, min(most, TILE // (power(x.shape[-1]) * x.element_size())))
