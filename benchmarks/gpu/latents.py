"""One decoding step's attention over latents (MLA): absorbed projections beside expansion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import Row, attempted, milliseconds
from foveate.ops.latent_attention import Projections, latent_attention

HEADS, RANK, ROTARY, SIZE = 16, 512, 64, 128  # DeepSeek-V2-Lite's
TOKENS = 16384
ABSORBED, EXPANDED = "latents, absorbed", "latents, expanded"
ALLOWED = 0.02
"""Largest difference of the two in bfloat16, relative to the largest output."""


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield both ways in milliseconds; the absorbed one with its difference from the other."""
    about = {"how": "one layer, eager"}
    inputs = _inputs(setting)
    yield attempted({"policy": EXPANDED, **about}, lambda: {"ms": _ms(expanded, inputs, setting)})
    yield attempted({"policy": ABSORBED, **about}, _absorbed, inputs, setting)


def _absorbed(inputs: tuple[Any, ...], setting: SuiteSetting) -> dict[str, Any]:
    ours, other = absorbed(*inputs).float(), expanded(*inputs).float()
    difference = float((ours - other).abs().max() / other.abs().max())
    return {"ms": _ms(absorbed, inputs, setting), "difference": difference}


def _ms(attention: Any, inputs: tuple[Any, ...], setting: SuiteSetting) -> float:
    with torch.no_grad():
        repeats = 2 if setting.quick else 20
        return milliseconds(lambda: attention(*inputs), repeats, setting.torch_device)


def _inputs(setting: SuiteSetting) -> tuple[Tensor, Tensor, Tensor, Projections]:
    """Return queries, latents, rotary keys and projections of one layer, in bfloat16."""
    generator = torch.Generator(setting.torch_device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(
            shape, generator=generator, device=setting.torch_device, dtype=torch.float32
        )
        return (scale * drawn).bfloat16()

    n = 64 if setting.quick else TOKENS
    weights = normal(HEADS, SIZE, RANK, scale=RANK**-0.5), normal(HEADS, SIZE, RANK)
    q = normal(1, HEADS, 1, SIZE + ROTARY)
    return q, normal(1, n, RANK), normal(1, n, ROTARY), Projections(*weights)


def absorbed(q: Tensor, latents: Tensor, rotary: Tensor, projections: Projections) -> Tensor:
    """Return the attention as Foveate computes it over kept latents."""
    return latent_attention(q, latents, rotary, projections, q.shape[-1] ** -0.5)


def expanded(q: Tensor, latents: Tensor, rotary: Tensor, projections: Projections) -> Tensor:
    """Return the attention as transformers computes it: keys and values first."""
    keys = torch.einsum("bnr,hsr->bhns", latents, projections.keys)
    values = torch.einsum("bnr,her->bhne", latents, projections.values)
    shared = rotary[:, None].expand(-1, HEADS, -1, -1)
    scale = q.shape[-1] ** -0.5
    return scaled_dot_product_attention(q, torch.cat([keys, shared], -1), values, scale=scale)
