"""Prefill operators beside FlashAttention (scaled_dot_product_attention) and FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.inputs import Inputs, Size
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import Row, attempted, milliseconds, table

TOKENS, QUICK_TOKENS = (8192, 32768), (64,)
AIM = "Aim at 32k: attention with sums at most 1.4 times FlashAttention."


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield the milliseconds of each operator and its ratio to FlashAttention; references at 8k
    only.
    """
    for n in QUICK_TOKENS if setting.quick else TOKENS:
        size = Size(1, n, h=2, g=2, d=16, w=4) if setting.quick else Size(1, n)
        inputs = Inputs(size, torch.bfloat16, setting.torch_device)
        flash = None
        for what, work in _works(inputs, setting, reference=n == min(TOKENS)):
            row = attempted({"tokens": n, "what": what}, _timed, work, setting)
            flash = row.get("ms") if flash is None else flash
            yield row | ({"to_flash": row["ms"] / flash} if flash and "ms" in row else {})


def _timed(work: Callable[[], Any], setting: SuiteSetting) -> dict[str, float]:
    return {"ms": milliseconds(work, 2 if setting.quick else 10, setting.torch_device)}


def _works(
    inputs: Inputs, setting: SuiteSetting, *, reference: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    q, k, v = inputs.q, inputs.k, inputs.v
    yield "FlashAttention", lambda: _flash(q, k, v)
    yield "FlexAttention", _flex(q, k, v, compiled=setting.on_gpu)
    for name, call in inputs.prefill().items():
        yield name, lambda call=call: call(setting.kernels)  # type: ignore[misc]
        if reference and setting.kernels != "reference":
            yield f"{name}, reference", lambda call=call: call("reference")  # type: ignore[misc]


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _flex(q: Tensor, k: Tensor, v: Tensor, *, compiled: bool) -> Callable[[], Any]:
    """Return a call of causal FlexAttention, compiled at the first call, as intended."""
    attention: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    n, masks = q.shape[2], list[Any]()

    def causal(b: Tensor, h: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        return query >= slot

    def work() -> Any:
        if not masks:
            masks.append(create_block_mask(causal, None, None, n, n, device=q.device.type))
        return attention(q, k, v, block_mask=masks[0], enable_gqa=True)

    return work


def page(measured: Sequence[Row]) -> list[str]:
    """Return the table of all rows."""
    columns = {"tokens": "tokens", "what": "what", "ms": "ms", "to_flash": "to FlashAttention"}
    return [AIM, "", *table(measured, columns)]
