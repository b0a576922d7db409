r"""Time of a decoding step over latents (MLA), expanded and with absorbed projections.

    python -m benchmarks.speed.latents [--lengths 1024 4096 16384 32768] [--steps 5]

A random DeepSeek-V3 of two layers and 16 heads, whose latents have the released sizes, decodes over
caches of drawn latents: a step's time depends on their number alone. Caches alternate step by step.
Writes benchmarks/results/latents.md and .json: medians, in CPU time of one thread, as other work of
the machine must not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache

import foveate
from benchmarks.output import machine, table, write
from foveate.cache.pairs import DensePairs
from foveate.hf.attention import absorbed
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE

SHARES = (1.0, 0.5, 0.2, 0.1)
RANK, ROTARY, LAYERS = 512, 64, 2
PROMPT = 32  # tokens that a cache reads before it gets its drawn latents


def deepseek() -> DeepseekV3ForCausalLM:
    """Return the random model, in float32: CPUs are slow in 16 bits."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=256,
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=16,
        first_k_dense_replace=LAYERS,
        q_lora_rank=512,
        max_position_embeddings=65536,
        num_mtp_layers=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.train(False)
    return cast(DeepseekV3ForCausalLM, model)


@dataclass
class Measured:
    """A cache, with its milliseconds of each step and its last logits."""

    cache: Any
    spec: str | None  # None: stock
    absorbs: bool
    bytes: int
    times: list[float]
    logits: torch.Tensor | None = None


def stock(model: DeepseekV3ForCausalLM, latents: torch.Tensor) -> Measured:
    """Return transformers' own cache of all latents."""
    cache = DynamicCache(config=model.config)
    for layer in range(LAYERS):
        cache.update(latents[..., :RANK], latents[..., RANK:], layer)
    return Measured(cache, None, False, LAYERS * latents.nbytes, [])


def kept(
    model: DeepseekV3ForCausalLM, latents: torch.Tensor, share: float, absorbs: bool
) -> Measured:
    """Return Foveate's cache of the newest latents, with spare room as after any prompt."""
    spec = "full" if share == 1 else "streaming_llm:budget=50%,sinks=0"
    length, count = latents.shape[2], round(share * latents.shape[2])
    columns = torch.arange(length - count, length).expand(1, 1, -1)
    own = latents[:, :, length - count :]
    with foveate.compress(model, spec) as session:
        cache = session.prefill(input_ids=torch.randint(0, 256, (1, PROMPT)))
    for layer in foveate_layers(cache):
        if share == 1:
            layer.stored = DensePairs.empty(own[..., :RANK], own[..., RANK:], length + 64)
            layer.stored.append(own[..., :RANK], own[..., RANK:])
        else:
            layer.stored = DensePairs(own[..., :RANK], own[..., RANK:], columns, length)
        layer.seen = length
    return Measured(cache, spec, absorbs, LAYERS * own.nbytes, [])


@torch.inference_mode()
def step(model: DeepseekV3ForCausalLM, measured: Measured) -> None:
    """Time one step of one cache."""
    with ExitStack() as stack:
        if measured.spec is not None:
            stack.enter_context(foveate.compress(model, measured.spec))
        if not measured.absorbs:
            patch = mock.patch.object(absorbed, "readable_projections", return_value=None)
            stack.enter_context(patch)
        start = time.process_time()
        out = model(input_ids=torch.tensor([[5]]), **{CACHE: measured.cache})
        measured.times.append(1000 * (time.process_time() - start))
    measured.logits = out.logits


def measure(model: DeepseekV3ForCausalLM, length: int, steps: int) -> dict[str, Any]:
    """Return median milliseconds of stock, and of each share with and without absorption."""
    latents = torch.randn(1, 1, length, RANK + ROTARY)
    caches = {"stock": stock(model, latents), "100 %": kept(model, latents, 1.0, True)}
    for share in SHARES[1:]:
        for absorbs in (False, True):
            name = f"{share:.0%}, {'absorbed' if absorbs else 'expanded'}".replace("%", " %")
            caches[name] = kept(model, latents, share, absorbs)
    for _ in range(steps + 1):
        for cache in caches.values():
            step(model, cache)
    _check(caches)
    return {
        name: {"ms": statistics.median(cache.times[1:]), "bytes": cache.bytes}
        for name, cache in caches.items()
    }


def _check(caches: dict[str, Measured]) -> None:
    """Raise unless both ways of a share have the same logits, and all latents stock's."""
    assert torch.equal(cast(Any, caches["100 %"].logits), cast(Any, caches["stock"].logits))
    for name, cache in caches.items():
        if cache.absorbs and (other := caches.get(name.replace("absorbed", "expanded"))):
            torch.testing.assert_close(cache.logits, other.logits, atol=1e-5, rtol=1e-5)


def main() -> None:
    """Measure every length, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 32768])
    parser.add_argument("--steps", type=int, default=5)
    a = parser.parse_args()
    torch.set_num_threads(1)
    model = deepseek()
    found: dict[int, dict[str, Any]] = {}
    for length in a.lengths:
        found[length] = measure(model, length, a.steps)
        write("latents", page(found, a.steps), {"machine": machine(), "lengths": found})


def page(found: dict[int, dict[str, Any]], steps: int) -> str:
    """Return the page of results."""
    cells = []
    for length, rows in found.items():
        for name, row in rows.items():
            ratio = row["ms"] / rows["100 %"]["ms"]
            share = row["bytes"] / rows["stock"]["bytes"]
            numbers = f"{row['ms']:.1f}", f"{ratio:.3f}", f"{row['bytes'] / length:,.0f}"
            cells.append([f"{length:,}", name, *numbers, f"{share:.2f}"])
    head = ["tokens", "cache", "step, ms", "to 100 %", "bytes per token read", "share"]
    lines = [
        "# Decoding steps over latents",
        "",
        "A random DeepSeek-V3 of two layers and 16 heads in float32 with the released latents (512 "
        f"elements, 64 rotary); medians of {steps} steps, CPU time of one thread. transformers "
        "expands every stored latent at every step, and so does Foveate if all are kept, as its "
        "results equal the stock cache's bit for bit. Kept latents are not expanded (absorbed); "
        "expanded: with that switched off. The logits of both agree to 1e-5.",
        "",
        *table(head, cells),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
