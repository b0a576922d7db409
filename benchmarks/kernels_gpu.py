"""Every Triton kernel on a CUDA GPU: its results beside the reference's, and what it takes.

    python benchmarks/kernels_gpu.py [--dtype bfloat16] [--tokens 8192 32768] [--batch 8]

Correctness comes first, for several types and head sizes; a kernel that is off its tolerance is
named, and the exit status is 1. Times are medians, in milliseconds on the device. Column sums stand
beside scaled_dot_product_attention of the same tensors; ragged decoding beside the bytes per second
that a copy moves, and in a CUDA graph as well. Writes benchmarks/results/gpu_kernels.md and .json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from written import write

from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_sums,
    column_sums,
)
from foveate.ops.compaction import compaction
from foveate.ops.heads import starts_of
from foveate.ops.mix_statistics import mix_statistics
from foveate.ops.nearest import nearest_by_cosine
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.window_attention import window_attention

Call = Callable[[str], Any]  # an operator with its arguments, given the implementation
GROUPS, KV_HEADS, DIM, WINDOW, KEEP = 4, 8, 128, 32, 0.1


class Inputs:
    """Random tensors of one layer, and the operators on them."""

    def __init__(self, b: int, n: int, d: int, dtype: torch.dtype, device: str):
        def normal(heads: int) -> Tensor:  # as a projection leaves them: tokens first
            return torch.randn(b, n, heads, d, device=device, dtype=dtype).transpose(1, 2)

        self.q, self.k, self.v = normal(KV_HEADS * GROUPS), normal(KV_HEADS), normal(KV_HEADS)
        self.scale, self.kept = d**-0.5, torch.rand(b, KV_HEADS, n, device=device) < KEEP
        self.kept[..., -1] = True  # every head keeps something
        self.columns = torch.arange(n, device=device).expand(b, KV_HEADS, n)
        self.counts = self.kept.sum(-1)
        self.starts = starts_of(self.counts)
        causal = (
            torch.arange(n, device=device) <= torch.arange(n - WINDOW, n, device=device)[:, None]
        )
        self.seen = causal.expand(b, 1, WINDOW, n)

    def prefill(self) -> dict[str, Call]:
        """What is done once, when a prompt has been read."""
        q, k, v, scale, kept = self.q, self.k, self.v, self.scale, self.kept
        counts = torch.ones(len(q), 2, GROUPS, q.shape[2], device=q.device)
        return {
            "column_sums": lambda impl: column_sums(q, k, scale, impl=impl),
            "attention_with_sums": lambda impl: attention_with_sums(q, k, v, scale, impl=impl),
            "attention_with_counted_sums": lambda impl: attention_with_counted_sums(
                q, k, v, counts, scale, 1.0, impl=impl
            ),
            "window_attention": lambda impl: window_attention(
                q[:, :, -WINDOW:], k, self.seen, scale, impl=impl
            ),
            "mix_statistics": lambda impl: mix_statistics(k, v, kept, impl=impl),
            "compaction": lambda impl: compaction(k, v, self.columns, kept, self.counts, impl=impl),
            "nearest_by_cosine": lambda impl: nearest_by_cosine(k, kept, impl=impl),
        }

    def decode(self) -> dict[str, Call]:
        """One step over what was kept, with and without softmax-n."""
        flat = compaction(self.k, self.v, self.columns, self.kept, self.counts, impl="reference")
        lengths = self.starts.diff().tolist()
        query, tail = self.q[:, :, -1:], (self.k[:, :, -33:], self.v[:, :, -33:])

        def step(n: float) -> Call:
            return lambda impl: ragged_decode(
                query,
                flat.k,
                flat.v,
                lengths,
                *tail,
                self.scale,
                n,
                starts=self.starts,
                longest=max(lengths),
                impl=impl,
            )

        return {"ragged_decode": step(0.0), "ragged_decode, softmax-n": step(1.0)}


def checks(device: str, n: int = 1000) -> Iterator[dict[str, Any]]:
    """Each kernel against the reference, for several types and head sizes."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for d in (64, 80, 96, 128, 256):
            torch.manual_seed(0)
            inputs = Inputs(2, n, d, dtype, device)
            for name, call in (inputs.prefill() | inputs.decode()).items():
                yield {
                    "kernel": name,
                    "dtype": str(dtype),
                    "d": d,
                    "n": n,
                    **compared(call("triton"), call("reference"), name, dtype),
                }
    torch.cuda.empty_cache()


def compared(ours: Any, expected: Any, name: str, dtype: torch.dtype) -> dict[str, Any]:
    """Largest difference of any result, over 1 or the number's size, and whether it is allowed.

    Copies are exact. Outputs of attention carry the rounding of their weights to the type; all else
    is added up in float32. A nearest slot may differ where two cosines do by rounding, so there the
    cosines alone are compared.
    """
    if name == "nearest_by_cosine":
        ours, expected = ours.cosine, expected.cosine
    pairs = zip(ours, expected, strict=True) if isinstance(ours, tuple) else [(ours, expected)]
    off = 0.0
    for x, y in pairs:
        apart = (x.double() - y.double()).abs() / y.double().abs().clamp_min(1)
        off = max(off, float(apart.nan_to_num(torch.inf).max()))
    rounds = "decode" in name or name.startswith("attention_with")
    allowed = 8 * torch.finfo(dtype).eps if rounds and dtype != torch.float32 else 1e-4
    allowed = 0.0 if name == "compaction" else allowed
    return {"difference": off, "allowed": allowed, "ok": off <= allowed}


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time on the device, after two calls that compile and warm up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def prefill_times(tokens: int, dtype: torch.dtype, repeats: int) -> Iterator[dict[str, Any]]:
    """Every operator on one prompt, and the stock attention."""
    inputs = Inputs(1, tokens, DIM, dtype, "cuda")
    q, k, v = inputs.q, inputs.k, inputs.v
    stock = milliseconds(
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), repeats
    )
    yield {"tokens": tokens, "what": "scaled_dot_product_attention", "ms": stock}
    for name, call in inputs.prefill().items():
        ms = milliseconds(lambda call=call: call("triton"), repeats)  # type: ignore[misc]
        slow = milliseconds(lambda call=call: call("reference"), 3)  # type: ignore[misc]
        yield {
            "tokens": tokens,
            "what": name,
            "ms": ms,
            "reference_ms": slow,
            "to_sdpa": ms / stock,
        }


def copied_bytes_per_second(repeats: int) -> float:
    """Bytes read and written by a copy of 1 GiB."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms = milliseconds(lambda: target.copy_(source), repeats)
    return 2 * source.nbytes / ms * 1e3


def decode_times(
    tokens: int, batch: int, dtype: torch.dtype, repeats: int
) -> Iterator[dict[str, Any]]:
    """Heads of one length, and of lengths from 0.2 to 1.8 times that; each in a graph as well."""
    copy = copied_bytes_per_second(repeats)
    yield {"what": "copy of 1 GiB", "bytes_per_second": copy, "to_copy": 1.0}
    heads = batch * KV_HEADS
    share = torch.rand(heads, generator=torch.Generator().manual_seed(0)) * 1.6 + 0.2
    every = {
        "heads of one length": [tokens] * heads,
        "heads of 0.2 to 1.8 times that": (share * tokens).long().tolist(),
    }
    for what, lengths in every.items():
        step = decode_step(batch, lengths, dtype)
        pairs = sum(lengths) + heads * ROOM
        moved = pairs * 2 * DIM * torch.finfo(dtype).bits // 8
        for how, work in (("", step), (", CUDA graph", graphed(step))):
            ms = milliseconds(work, repeats)
            speed = moved / ms * 1e3
            yield {
                "what": what + how,
                "ms": ms,
                "bytes": moved,
                "bytes_per_second": speed,
                "to_copy": speed / copy,
            }


ROOM = 64  # pairs in the tail


def decode_step(batch: int, lengths: list[int], dtype: torch.dtype) -> Callable[[], Tensor]:
    """One step whose tensors stay where they are."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    q = normal(batch, KV_HEADS * GROUPS, 1, DIM)
    flat_k, flat_v = normal(sum(lengths), DIM), normal(sum(lengths), DIM)
    tail_k, tail_v = normal(batch, KV_HEADS, ROOM, DIM), normal(batch, KV_HEADS, ROOM, DIM)
    starts = torch.tensor([0, *accumulate(lengths)], device="cuda")
    counted, longest = torch.tensor([ROOM], device="cuda"), max(lengths)
    return lambda: ragged_decode(
        q,
        flat_k,
        flat_v,
        lengths,
        tail_k,
        tail_v,
        DIM**-0.5,
        starts=starts,
        longest=longest,
        tail_length=counted,
        impl="triton",
    )


def graphed(step: Callable[[], Tensor]) -> Callable[[], Any]:
    """The step as a CUDA graph; it has to give what the step gives."""
    expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    torch.cuda.synchronize()
    if not torch.equal(out, expected):
        sys.exit("the captured step gives other numbers than the step itself.")
    return graph.replay


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = (row.get(column, "") for column in columns)
        lines.append(
            "| " + " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Checks, measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--batch", type=int, default=8, help="rows that decode together")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "this benchmark needs a CUDA GPU, and PyTorch finds none. Without one, the tests in "
            "tests/ops/kernels run the kernels in Triton's interpreter."
        )
    dtype = getattr(torch, options.dtype)
    with torch.inference_mode():
        found = list(checks("cuda"))
        prefill = [row for n in options.tokens for row in prefill_times(n, dtype, options.repeats)]
        torch.cuda.empty_cache()
        decode = list(decode_times(max(options.tokens), options.batch, dtype, options.repeats))
    wrong = [row for row in found if not row["ok"]]
    gpu, versions = torch.cuda.get_device_name(), f"PyTorch {torch.__version__}"
    parts = [
        f"# Kernels on a GPU\n\n{gpu}, {versions}, {options.dtype}, {KV_HEADS * GROUPS} query "
        f"heads, {KV_HEADS} KV heads of {DIM}. Medians of {options.repeats} runs.",
        f"{len(found)} comparisons with the reference, {len(wrong)} beyond their tolerance.",
        table(wrong, ["kernel", "dtype", "d", "n", "difference", "allowed"]) if wrong else "",
        f"A prompt, one row; {KEEP:.0%} kept",
        table(prefill, ["tokens", "what", "ms", "to_sdpa", "reference_ms"]),
        f"A decoding step, batch {options.batch}, {max(options.tokens)} pairs a head",
        table(decode, ["what", "ms", "bytes", "bytes_per_second", "to_copy"]),
    ]
    text = "\n\n".join(part for part in parts if part)
    write(
        "gpu_kernels",
        text,
        {
            "gpu": gpu,
            "torch": torch.__version__,
            "dtype": options.dtype,
            "checks": found,
            "prefill": prefill,
            "decode": decode,
        },
    )
    print(text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
