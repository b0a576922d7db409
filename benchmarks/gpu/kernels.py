"""Triton kernels against their references on the GPU, for several types and head sizes.

On a CPU they run in Triton's interpreter where possible, which only shows that the suite runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.inputs import Call, Inputs, Size
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.processes import side_by_side
from benchmarks.gpu.rows import Row, attempted, table

CASES = [
    *((torch.bfloat16, d) for d in (128, 64, 80, 256)),
    *((torch.float16, d) for d in (128, 64)),
    *((torch.float32, d) for d in (128, 64)),
]
SIZE, QUICK = Size(2, 1000), Size(1, 40, h=2, g=2, w=4)
ROUNDED = ("ragged_decode", "quantised_decode", "turbo_decode", "attention_with")


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield a row for every kernel, type and head size; ``ok`` only within tolerance."""
    if setting.quick:
        yield from _of_type(torch.float32, 16, QUICK, setting)
        return
    yield from side_by_side(
        [
            ({"kernel": "(all)", **_type(*case)}, partial(_of_type, *case, SIZE, setting))
            for case in CASES
        ]
    )


def _of_type(dtype: torch.dtype, d: int, size: Size, setting: SuiteSetting) -> Iterator[Row]:
    inputs = Inputs(size._replace(d=d), dtype, setting.torch_device)
    for name, call in (inputs.prefill() | inputs.decode()).items():
        about = {"kernel": name, **_type(dtype, d)}
        row = attempted(about, compared, call, name, dtype)
        yield row if setting.on_gpu else _not_run(row)


def _type(dtype: torch.dtype, d: int) -> Row:
    return {"dtype": str(dtype).removeprefix("torch."), "d": d}


def _not_run(row: Row) -> Row:
    """Mark failures on a CPU as not run: Triton or its interpreter may be missing."""
    return {"not_run" if name == "failed" else name: value for name, value in row.items()}


def wrong(measured: Sequence[Row]) -> list[Row]:
    """Return rows off their tolerance, or that failed where they should run."""
    return [row for row in measured if not row.get("ok") and "not_run" not in row]


def compared(call: Call, name: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest relative difference of any result, and if it is within tolerance.

    Differences are relative to the value, or absolute below 1. Copies must be exact. Attention
    outputs carry the rounding of weights to the type; everything else is summed in float32. For the
    nearest slot only cosines are compared, because rounding may swap two slots with equal cosines.
    """
    ours, expected = call("triton"), call("reference")
    if name == "nearest_by_cosine":
        ours, expected = ours.cosine, expected.cosine
    pairs = zip(ours, expected, strict=True) if isinstance(ours, tuple) else [(ours, expected)]
    off = max(_apart(x, y) for x, y in pairs)
    allowed = 1e-4
    if name.startswith(ROUNDED) and dtype != torch.float32:
        allowed = (16 if name == "turbo_decode" else 8) * torch.finfo(dtype).eps
    if name == "compaction":
        allowed = 0.0
    return {"difference": off, "allowed": allowed, "ok": off <= allowed}


def _apart(x: torch.Tensor, y: torch.Tensor) -> float:
    apart = (x.double() - y.double()).abs() / y.double().abs().clamp_min(1)
    return min(float(apart.nan_to_num(torch.inf).max()), torch.finfo(torch.float32).max)


def page(measured: Sequence[Row]) -> list[str]:
    """Return counts, failures, and reasons of kernels that did not run."""
    bad = wrong(measured)
    left = [row["not_run"] for row in measured if "not_run" in row]
    ran = len(measured) - len(left)
    lines = [f"{ran} comparisons with the reference; {len(bad)} are wrong or failed."]
    lines += [f"{left.count(why)} not run here: {why}." for why in dict.fromkeys(left)]
    if not bad:
        return lines
    columns = {"kernel": "kernel", "dtype": "type", "d": "head size"}
    return [*lines, "", *table(bad, columns | {"difference": "off by", "allowed": "allowed"})]
