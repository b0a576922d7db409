"""Prefill of a decoder with pruned visual tokens, beside the stock model's.

    python -m benchmarks.speed.pruning [--rounds 5] [--threads 1]

Two shapes with random weights, 1,024 tokens of which 960 are visual: two layers of a 7B model, with
tokens dropped before the first, and 32 narrow layers, where FastV drops half of them before the
third. Stock and pruned prefills run in turns. Reports medians of CPU seconds, which other processes
disturb least, the remaining share of the decoder's FLOPs, and the memory peak above the
model. Writes benchmarks/results/pruning.md and .json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import foveate
from benchmarks.output import write
from foveate.hf.model.internals import CACHE
from foveate_lab.bench import processor
from foveate_lab.bench.memory import peak_of

TOKENS, VISUAL, BEFORE = 1024, 960, 32  # BEFORE: text tokens in front


FASTV = ("fastv.prune(layer=2,keep=50%)+full", "fastv.prune(layer=2,keep=25%)+full")


class Shape(NamedTuple):
    """Shape of a decoder: widths, layers, and pruning specs."""

    hidden: int
    inner: int
    heads: int
    layers: int
    specs: tuple[str, ...]


SHAPES = {
    "two layers of a 7B model": Shape(
        4096, 11008, 32, 2, ("random.prune(keep=25%)+full", "fastv.prune(layer=1,keep=25%)+full")
    ),
    "32 narrow layers": Shape(
        512,
        1376,
        8,
        32,
        FASTV,
    ),
}


def model_of(shape: Shape) -> LlamaForCausalLM:
    """Build a model with random weights in float32 and a small vocabulary, since logits are of one
    token.
    """
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=2 * TOKENS,
    )
    model = LlamaForCausalLM(config)
    model.train(mode=False)
    return model


def flops(shape: Shape, tokens: int) -> float:
    """Return the FLOPs of one layer over ``tokens`` tokens: matrices and causal attention."""
    matrices = 4 * shape.hidden**2 + 3 * shape.hidden * shape.inner
    return 2.0 * tokens * matrices + 2.0 * tokens**2 * shape.hidden


def share_of_flops(shape: Shape, spec: str) -> float:
    """Return the remaining share of the stock decoder's FLOPs."""
    stage = foveate.policy(spec).prune
    assert stage is not None
    (cut,) = stage.layers(shape.layers)
    left = TOKENS - VISUAL + int(VISUAL * stage.keep.value)  # type: ignore[attr-defined]
    full_flops, cheap = flops(shape, TOKENS), flops(shape, left)
    return (cut * full_flops + (shape.layers - cut) * cheap) / (shape.layers * full_flops)


def prefills(model: LlamaForCausalLM, spec: str) -> Callable[[], None]:
    """Return a prefill under a policy, or of the stock model without one."""
    embeds = torch.randn(1, TOKENS, model.config.hidden_size)
    vision = torch.zeros(1, TOKENS, dtype=torch.bool)
    vision[:, BEFORE : BEFORE + VISUAL] = True

    def stock() -> None:
        cache = DynamicCache(config=model.config)
        model(inputs_embeds=embeds, **{CACHE: cache}, logits_to_keep=1)

    def pruned() -> None:
        with foveate.compress(model, spec, vision=vision):
            model(inputs_embeds=embeds, logits_to_keep=1)

    return pruned if spec else stock


@torch.no_grad()
def measured(shape: Shape, rounds: int) -> dict[str, dict[str, float]]:
    """Measure seconds and peaks of each policy and of the stock model, in turns."""
    model = model_of(shape)
    works = {spec: prefills(model, spec) for spec in ("", *shape.specs)}
    # the first call of each is its warm-up as well
    peaks = {spec: peak_of(work, torch.device("cpu")) for spec, work in works.items()}
    taken: dict[str, list[float]] = {spec: [] for spec in works}
    for _ in range(rounds):
        for spec, work in works.items():
            start = time.process_time()
            work()
            taken[spec].append(time.process_time() - start)
    stock = taken[""]
    return {
        spec: {
            "seconds": round(median(taken[spec]), 3),
            "of_stock": round(median(a / b for a, b in zip(taken[spec], stock, strict=True)), 3),
            "of_flops": round(share_of_flops(shape, spec), 3) if spec else 1.0,
            "peak_bytes": peaks[spec] or 0,
        }
        for spec in works
    }


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    how = f"{found['processor']}, {found['threads']} thread, float32, random weights"
    lines = [
        "# Prefills in which visual tokens are not computed",
        "",
        f"{how}; {TOKENS:,} tokens, {VISUAL} of them visual. Seconds of the processor, medians of "
        f"{found['rounds']} turns.",
        "",
        "| decoder | policy | seconds | of stock | of its FLOPs | peak |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in found["shapes"].items():
        for spec, row in rows.items():
            policy, peak = f"`{spec}`" if spec else "stock", row["peak_bytes"] / 2**20
            times = f"{row['seconds']:.2f} | {row['of_stock']:.2f} | {row['of_flops']:.2f}"
            lines.append(f"| {name} | {policy} | {times} | {peak:.0f} MiB |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    shapes = {name: measured(shape, args.rounds) for name, shape in SHAPES.items()}
    facts = {"processor": processor(torch.device("cpu")), "torch": torch.__version__}
    found: dict[str, Any] = {**facts, **vars(args), "shapes": shapes}
    write("pruning", page(found), found)
    print(page(found))


if __name__ == "__main__":
    main()
