"""Compiles every kernel for a GPU that is not there; run in a process without TRITON_INTERPRET.

    python -m tests.ops.kernels.ahead bfloat16 96 [capability]

The operators run as they would on the GPU, with their own arguments; instead of launching a kernel,
Triton compiles it for just these, down to the binary. Prints the shared memory that each takes.
"""

from __future__ import annotations

import importlib
import sys
from itertools import accumulate

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from foveate.ops.kernels.launch import STAGES
from foveate.ops.turbo_codes import encode


class Absent:
    """As much of a GPU's driver as compiling asks for."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compiled(name):
    """The operator's module, whose launches compile."""
    module = importlib.import_module(f"foveate.ops.kernels.{name}")

    def run(kernel, programs, like, *arguments, **settings):
        made = kernel.warmup(*arguments, grid=(programs,), num_stages=STAGES, **settings)
        assert "cubin" in made.asm
        print(kernel.__name__, made.metadata.shared)

    module.run, module.check = run, lambda *_, **__: None
    return module


def main(dtype, d, capability=90):
    driver.set_active(Absent(capability))
    every(dtype, d, b=2, h=2, g=4, n=128, w=32)
    every(dtype, d, b=1, h=1, g=1, n=1, w=1)  # Triton makes constants of arguments that are 1


def every(dtype, d, b, h, g, n, w):

    def of(*shape):
        return torch.zeros(shape, dtype=dtype)

    q, k, v = of(b, h * g, n, d), of(b, h, n, d), of(b, h, n, d)
    kept = torch.ones(b, h, n, dtype=torch.bool)
    seen = torch.ones(b, 1, n, n, dtype=torch.bool)
    lengths = [n] * (b * h)
    starts = torch.tensor([0, *accumulate(lengths)])
    slots = torch.arange(n).expand(b, h, n)
    flat = k.view(-1, d)
    compiled("column_sums").attention_with_sums(q, k, v, 1.0, None)
    compiled("column_sums").column_sums(q, k, 1.0, seen, None)
    counts = torch.ones(b, 2, g, n)
    compiled("column_sums").attention_with_counted_sums(q, k, v, counts, 1.0, 1.0, None)
    decode = compiled("ragged_decode").ragged_decode
    decode(q[:, :, :1], flat, flat, lengths, k, v, 1.0, 0.0, starts, n)
    counted = torch.ones(1, dtype=torch.int64)
    decode(q[:, :, :1], flat, flat, lengths, k, v, 1.0, 1.0, starts, n, counted)
    codes = compiled("quantised_decode")
    for bits in (8, 4, 2):
        packed, scales = (
            torch.zeros(len(flat), d * bits // 8, dtype=torch.uint8),
            flat[:, :4].clone(),
        )
        coded = codes.FlatCodes(
            packed,
            flat[:4],
            flat[:4],
            starts[:1].expand(len(flat)),
            packed,
            scales,
            scales,
            starts,
            n,
            bits,
            32,
        )
        rest = codes.FlatPairs(flat, flat, starts, n)
        codes.quantised_decode(q[:, :, :1], coded, rest, k, v, 1.0, 0.0)
    turbo = compiled("turbo_decode")
    for bits, sketch in ((4, False), (3, True)):
        packed, norms = encode(flat, bits, sketch)
        values, value_norms = encode(flat, bits)
        coded = turbo.TurboCodes(packed, norms, values, value_norms, starts, n, bits)
        turbo.turbo_decode(q[:, :, :1], coded, rest, k, v, 1.0, 0.0)
    compiled("window_attention").window_attention(q[:, :, :w], k, seen[:, :, :w], 1.0, 0.0)
    compiled("mix_statistics").mix_statistics(k, v, kept)
    compiled("compaction").compaction(k, v, slots, kept, kept.sum(-1))
    compiled("nearest").nearest_by_cosine(k, kept)


if __name__ == "__main__":
    main(getattr(torch, sys.argv[1]), *map(int, sys.argv[2:]))
