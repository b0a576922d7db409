"""What compression did: pairs kept, bytes before and after, seconds spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass
class LayerStats:
    """One layer. ``kept`` counts pairs per row and KV head, [b, h]; bytes are of all rows.

    ``bytes_before`` is what the stock cache would hold of the tokens seen, ``bytes_after`` the
    tensors held right after compression, room to grow included. ``seconds`` went into the policy's
    stages; what the prompt's attention adds up on its way is not in them.
    """

    layer: int
    kept: Int[Tensor, "b h"]
    seen: int
    bytes_before: int
    bytes_after: int
    compressed: bool
    seconds: float

    @property
    def tokens(self) -> float:
        """Pairs kept per KV head, on average."""
        return float(self.kept.float().mean())


@dataclass
class Stats:
    """One prompt. ``seen`` counts tokens of the padded batch; only layers that can be compressed
    are listed (sliding-window and cross-attention layers are left alone).
    """

    policy: str
    layers: list[LayerStats] = field(default_factory=list)

    @property
    def seen(self) -> int:
        """Tokens read, padding included."""
        return max((layer.seen for layer in self.layers), default=0)

    @property
    def kept(self) -> list[Int[Tensor, "b h"]]:
        """Pairs kept per layer, row and KV head."""
        return [layer.kept for layer in self.layers]

    @property
    def kept_tokens(self) -> float:
        """Pairs kept per row, layer and KV head, on average."""
        counts = [layer.tokens for layer in self.layers]
        return sum(counts) / len(counts) if counts else 0.0

    @property
    def bytes_before(self) -> int:
        """Bytes that the stock cache would hold in these layers."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors held in these layers."""
        return sum(layer.bytes_after for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Seconds spent on scoring, selecting, merging and storing."""
        return sum(layer.seconds for layer in self.layers)

    def __str__(self) -> str:
        share = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        lines = [
            f"{self.policy}: {self.kept_tokens:.1f} of {self.seen} tokens kept per KV head, "
            f"{self.bytes_after / 2**20:.2f} of {self.bytes_before / 2**20:.2f} MiB "
            f"({share:.1%}), {self.seconds * 1e3:.1f} ms"
        ]
        for layer in self.layers:
            counts = layer.kept.tolist()
            lines.append(f"  layer {layer.layer}: kept {counts if layer.compressed else 'all'}")
        return "\n".join(lines)


class Stopwatch:
    """Adds up seconds; on an accelerator it waits for the work to end."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Times the block."""
        start = now(device)
        yield
        self.seconds += now(device) - start

    @contextmanager
    def stopped(self, device: torch.device) -> Iterator[None]:
        """Leaves the block out of a longer one that is being timed."""
        start = now(device)
        yield
        self.seconds -= now(device) - start


def now(device: torch.device) -> float:
    """Seconds of a clock, after the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
