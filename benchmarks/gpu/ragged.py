"""Ragged decoding: bytes per second beside those of a plain copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.inputs import Size, decode_step
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import NEEDS_CUDA, Row, attempted, graphed, milliseconds, table

SIZE, QUICK = Size(8, 32768), Size(2, 64, h=2, g=2, d=16)
ROOM = 64  # pairs in the tail
AIM = "Aim: 80 % of the copy."


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield a copy; then steps over equal heads and over heads of 0.2 to 1.8 times that length.

    Each step also runs as a CUDA graph.
    """
    repeats = 2 if setting.quick else 20
    size = QUICK if setting.quick else SIZE
    copied = attempted({"what": "a copy"}, _copy, setting, repeats)
    yield copied
    heads = size.b * size.h
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(heads, generator=generator, dtype=torch.float32, device="cpu") * 1.6 + 0.2
    every = {
        "heads of one length": [size.n] * heads,
        "heads of 0.2 to 1.8 times that": (share * size.n).long().tolist(),
    }
    for what, lengths in every.items():
        for how in ("", ", CUDA graph"):
            arguments = (size, lengths, setting, bool(how), repeats)
            row = attempted({"what": what + how}, _step, *arguments)
            if copied.get("gb_per_s") and "gb_per_s" in row:
                row["to_copy"] = row["gb_per_s"] / copied["gb_per_s"]
            yield row


def _copy(setting: SuiteSetting, repeats: int) -> dict[str, float]:
    """Measure bytes read and written by a copy of 1 GiB."""
    count = 2**16 if setting.quick else 2**30
    source = torch.empty(count, dtype=torch.uint8, device=setting.torch_device)
    target = torch.empty_like(source)
    ms = milliseconds(lambda: target.copy_(source), repeats, setting.torch_device)
    return {"ms": ms, "gb_per_s": 2 * count / ms / 1e6}


def _step(
    size: Size, lengths: list[int], setting: SuiteSetting, graph: bool, repeats: int
) -> dict[str, Any]:
    if graph and not setting.on_gpu:
        return {"failed": NEEDS_CUDA}
    step: Callable[[], Tensor] = decode_step(
        size, lengths, ROOM, torch.bfloat16, setting.torch_device, setting.kernels
    )
    work: Callable[[], Any] = graphed(step, same=True) if graph else step
    ms = milliseconds(work, repeats, setting.torch_device)
    moved = (sum(lengths) + len(lengths) * ROOM) * 2 * size.d * 2
    return {"ms": ms, "mb": moved / 1e6, "gb_per_s": moved / ms / 1e6}


def page(measured: Sequence[Row]) -> list[str]:
    """Return the table of all rows."""
    columns = {"what": "what", "ms": "ms", "mb": "MB", "gb_per_s": "GB/s", "to_copy": "of the copy"}
    return [
        f"bfloat16, batch {SIZE.b}, {SIZE.n:,} pairs a head. {AIM}", "", *table(measured, columns)
    ]  # fmt: skip
