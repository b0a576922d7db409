"""Every Triton kernel against its reference, on the GPU, for several types and head sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from foveate.bench.suite.inputs import Call, Inputs, Size
from foveate.bench.suite.rows import Row, attempted, table
from foveate.bench.suite.setting import Setting

CASES = [
    *((torch.bfloat16, d) for d in (128, 64, 80, 256)),
    *((torch.float16, d) for d in (128, 64)),
    *((torch.float32, d) for d in (128, 64)),
]
SIZE, QUICK = Size(2, 1000), Size(1, 40, h=2, g=2, w=4)
ROUNDED = ("ragged_decode", "attention_with")


def rows(setting: Setting) -> Iterator[Row]:
    """One for every kernel, type and head size; one that is off its tolerance is not ``ok``."""
    size = QUICK if setting.quick else SIZE
    for dtype, d in [(torch.float32, 16)] if setting.quick else CASES:
        inputs = Inputs(size._replace(d=d), dtype, setting.place)
        for name, call in (inputs.prefill() | inputs.decode()).items():
            what = {"kernel": name, "dtype": str(dtype).removeprefix("torch."), "d": d}
            yield attempted(what, lambda call=call, of=(name, dtype): compared(call, *of))  # type: ignore[misc]


def compared(call: Call, name: str, dtype: torch.dtype) -> dict[str, Any]:
    """The largest difference of any result, over 1 or the number's size, and whether it is allowed.

    Copies are exact. Outputs of attention carry the rounding of their weights to the type; all else
    is added up in float32. A nearest slot may differ where two cosines do by rounding, so there the
    cosines alone are compared.
    """
    ours, expected = call("triton"), call("reference")
    if name == "nearest_by_cosine":
        ours, expected = ours.cosine, expected.cosine
    pairs = zip(ours, expected, strict=True) if isinstance(ours, tuple) else [(ours, expected)]
    off = max(_apart(x, y) for x, y in pairs)
    allowed = 1e-4
    if name.startswith(ROUNDED) and dtype != torch.float32:
        allowed = 8 * torch.finfo(dtype).eps
    if name == "compaction":
        allowed = 0.0
    return {"difference": off, "allowed": allowed, "ok": off <= allowed}


def _apart(x: torch.Tensor, y: torch.Tensor) -> float:
    apart = (x.double() - y.double()).abs() / y.double().abs().clamp_min(1)
    return min(float(apart.nan_to_num(torch.inf).max()), torch.finfo(torch.float32).max)


def page(found: Sequence[Row]) -> list[str]:
    """How many agree, and those that do not."""
    wrong = [row for row in found if not row.get("ok")]
    said = f"{len(found)} comparisons with the reference; {len(wrong)} are wrong or failed."
    if not wrong:
        return [said]
    columns = {"kernel": "kernel", "dtype": "type", "d": "head size"}
    return [said, "", *table(wrong, columns | {"difference": "off by", "allowed": "allowed"})]
