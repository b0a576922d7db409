"""Column sums of the causal softmax against SDPA alone: time side by side, and extra memory.

    python -m benchmarks.speed.column_sums [--tokens 4096] [--heads 32] [--kv-heads 32] [--dim 128]

Times are medians of alternating runs in one process. Memory is the rise of the peak resident size
over a process that holds only q, k and v.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
import torch.nn.functional as F

from benchmarks.output import CPU
from benchmarks.processes import apart
from foveate.ops.column_sums import column_sums
from foveate_lab.bench import processor
from foveate_lab.bench.memory import peak_of
from foveate_lab.bench.timing import seconds


def tensors(options: argparse.Namespace) -> list[torch.Tensor]:
    """Draw q, k and v of the requested shapes."""
    torch.manual_seed(0)
    heads = (options.heads, options.kv_heads, options.kv_heads)
    return [torch.randn(1, h, options.tokens, options.dim) for h in heads]


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Run the stock prefill attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape != k.shape)


def times(options: argparse.Namespace) -> tuple[float, float]:
    """Return median seconds of SDPA and of column sums, in alternation, after a warm-up."""
    q, k, v = tensors(options)
    scale = options.dim**-0.5
    pairs = []
    for _ in range(options.repeats + 1):
        alone = seconds(lambda: sdpa(q, k, v), CPU)
        pairs.append((alone, seconds(lambda: column_sums(q, k, scale), CPU)))
    attention, sums = zip(*pairs[1:], strict=True)
    return statistics.median(attention), statistics.median(sums)


def peak_bytes(options: argparse.Namespace) -> int:
    """Return the rise of peak resident memory over one call; run it in its own process."""
    torch.set_num_threads(options.threads)
    q, k, _ = tensors(options)
    column_sums(q[:, :1, :64], k[:, :1, :64], 1.0)  # loads the libraries
    peak = peak_of(lambda: column_sums(q, k, options.dim**-0.5), CPU)
    assert peak is not None, "peaks of memory can only be measured on Linux"
    return peak


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (
        ("tokens", 4096),
        ("heads", 32),
        ("kv-heads", 32),
        ("dim", 128),
        ("repeats", 5),
        ("threads", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    attention, sums = times(options)
    memory = apart(peak_bytes, options)
    result = {
        "tokens": options.tokens,
        "heads": options.heads,
        "kv_heads": options.kv_heads,
        "dim": options.dim,
        "threads": options.threads,
        "torch": torch.__version__,
        "machine": processor(CPU),
        "sdpa_s": round(attention, 4),
        "column_sums_s": round(sums, 4),
        "ratio": round(sums / attention, 3),
        "peak_extra_MiB": round(memory / 2**20, 1),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
