r"""Time of a decoding step with pairs in few bits, beside pairs in bfloat16.

    python -m benchmarks.speed.codes_step [--lengths 4096 16384] [--steps 16]

A random Llama of two layers (8 KV heads of 128, 32 query heads) reads a prompt once, every policy
compresses it and decodes; policies alternate step by step. Writes
benchmarks/results/codes_step.md and .json: medians, in CPU time of one thread, as other work of the
machine must not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import foveate
from benchmarks.output import machine, table, write
from foveate.hf import branch, record
from foveate.hf.model.internals import CACHE

POLICIES = (
    "full",
    "kivi:bits=4,group=64,residual=32",
    "turboquant:bits=4",
    "turboquant:bits=3",
    "turboquant:bits=2",
    "snapkv+turboquant(bits=4):budget=50%,window=32",
)


def llama() -> LlamaForCausalLM:
    """Return the random model, in bfloat16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=65536,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.train(False)
    return cast(LlamaForCausalLM, model)


def no_attention(q: Tensor, k: Tensor, v: Tensor, *more: Any, **options: Any) -> Tensor:
    """Return zeros in place of the prompt's attention, whose time grows with its square.

    The pairs of the second layer then have other numbers, and a step takes the same time.
    """
    return q.new_zeros(*q.shape[:-1], v.shape[-1])


linear = F.linear


def linear_in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Project the prompt in float32: CPUs without AVX-512 take several times longer in bfloat16."""
    return linear(x.float(), weight.float(), bias).to(x.dtype)


@torch.inference_mode()
def measure(model: LlamaForCausalLM, length: int, steps: int) -> dict[str, dict[str, float]]:
    """Return each policy's median milliseconds of a step, and its share of bfloat16's bytes."""
    with (
        patch.object(F, "scaled_dot_product_attention", no_attention),
        patch.object(F, "linear", linear_in_float32),
    ):
        recording = record(model, sums=False, input_ids=torch.randint(0, 256, (1, length)))
    caches, shares = {}, {}
    for spec in POLICIES:
        with foveate.compress(model, spec) as session:
            caches[spec] = branch(session, recording)
            shares[spec] = session.stats.bytes_after / session.stats.bytes_before
    times: dict[str, list[float]] = {spec: [] for spec in POLICIES}
    token = torch.tensor([[5]])
    for _ in range(steps + 2):
        for spec, cache in caches.items():
            with ExitStack() as stack:
                stack.enter_context(foveate.compress(model, spec))
                start = time.process_time()
                model(input_ids=token, **{CACHE: cache})
                times[spec].append(time.process_time() - start)
    return {
        spec: {"ms": 1000 * statistics.median(times[spec][2:]), "bytes": shares[spec]}
        for spec in POLICIES
    }


def main() -> None:
    """Measure every length, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--steps", type=int, default=16)
    a = parser.parse_args()
    torch.set_num_threads(1)
    model = llama()
    found: dict[int, Any] = {n: measure(model, n, a.steps) for n in a.lengths}
    cells = []
    for length, of_specs in found.items():
        base = of_specs["full"]["ms"]
        for spec, row in of_specs.items():
            step = f"{row['ms']:.1f}", f"{row['ms'] / base:.2f}"
            cells.append([f"{length:,}", f"`{spec}`", *step, f"{row['bytes']:.3f}"])
    head = ["tokens", "policy", "step, ms", "to bfloat16", "bytes, share of bfloat16"]
    text = [
        "# Decoding steps with pairs in few bits",
        "",
        "A random Llama of two layers in bfloat16, 8 KV heads of 128 and 32 query heads; medians "
        f"of {a.steps} steps, CPU time of one thread. Reference implementations: KIVI's codes are "
        "decoded to full precision in every step, TurboQuant's are read as they are.",
        "",
        *table(head, cells),
    ]
    write("codes_step", "\n".join(text), {"machine": machine(), "lengths": found})


if __name__ == "__main__":
    main()
