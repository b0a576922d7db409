"""Statistics of a compression: pairs kept, bytes before and after, seconds spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class LayerStats:
    """Statistics of one layer. ``kept`` counts pairs per row and KV head, [b, h]; bytes are of all
    rows.

    ``bytes_before`` is the stock cache's size for the tokens seen, ``bytes_after`` that of the
    tensors stored right after compression, room to grow included. ``seconds`` is the time of the
    policy's stages, without what the prompt's attention sums for them. ``dropped`` counts each
    row's tokens that the layer never computed, [b]; None if it computed all. ``evicted`` counts the
    pairs that it computed but did not keep, [b, h]. ``bits`` per stored number, on average over
    pairs and without scales; ``model_bits``: bits per number in the model's dtype.
    """

    layer: int
    kept: Int[Tensor, "b h"]
    seen: int
    bytes_before: int
    bytes_after: int
    compressed: bool
    seconds: float
    dropped: Int[Tensor, "b"] | None = None
    evicted: Int[Tensor, "b h"] | None = None
    bits: float = 0.0
    model_bits: int = 0

    @property
    def tokens(self) -> float:
        """Pairs kept per KV head, on average."""
        return float(self.kept.float().mean())


class Remaining(NamedTuple):
    """Shares of a prompt that remain, over all compressed layers and all rows; ``foveate run``
    writes the fields as JSON.

    ``visual`` counts the visual tokens of the prompt, and ``computed`` is the share of them that
    was computed, on average over layers. ``pairs`` is the share of the full cache's pairs that is
    stored, padding counted; ``bits`` per stored number, on average and without scales, of the
    model's own ``made``; ``bytes`` the share of the full cache's bytes. ``evicts`` is true if
    some layer dropped pairs that it had computed.
    """

    visual: int
    computed: float
    pairs: float
    bits: float
    made: int  # the key of ``foveate run --json``
    bytes: float
    evicts: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of "computed", "pairs" and "bits" that are below the full cache."""
        reduced = {
            "computed": self.computed < 1,
            "pairs": self.evicts,
            "bits": self.bits < self.made,
        }
        return tuple(name for name, is_less in reduced.items() if is_less)

    def __str__(self) -> str:
        tokens = f"{self.computed * self.visual:,.0f} of {self.visual:,} visual tokens computed"
        texts = {
            "computed": f"{tokens} ({self.computed:.0%}, mean of the layers)",
            "pairs": f"{self.pairs:.1%} of the pairs held",
            "bits": f"{self.bits:.1f} of {self.made} bits a number",
        }
        lines = [texts[name] for name in texts if name in self.parts]
        return "; ".join([*lines, f"{self.bytes:.1%} of the bytes"])


@dataclass
class Stats:
    """Statistics of one prompt. ``seen`` counts tokens of the padded batch; ``layers`` lists only
    layers that can be compressed (sliding-window and cross-attention layers are left alone).

    ``asked`` [b] is the budget in tokens per KV head and layer, by row; None where it follows from
    scores (auto), or the prompt was read elsewhere. ``noted`` counts the layers, by row [b], in
    which a boolean fact noted by a score holds ("decoupled" of DAVID); empty if nothing was scored.
    ``visual`` counts the visual tokens of each row of the prompt, [b], where the policy prunes
    some.
    """

    policy: str
    layers: list[LayerStats] = field(default_factory=list)
    asked: Int[Tensor, "b"] | None = None
    noted: Mapping[str, Int[Tensor, "b"]] = field(default_factory=dict)
    visual: Int[Tensor, "b"] | None = None

    @property
    def computed(self) -> Float[Tensor, "layers b"] | None:
        """Share of each row's visual tokens that was computed, layer by layer; None if the policy
        prunes none.
        """
        if self.visual is None:
            return None
        visual = self.visual.cpu().double().clamp_min(1)
        zeros = torch.zeros_like(visual)
        dropped = [
            zeros if layer.dropped is None else layer.dropped.cpu() / visual
            for layer in self.layers
        ]
        return 1 - torch.stack([*dropped, zeros])[:-1]

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
    def held(self) -> Float[Tensor, "b"]:
        """Pairs kept of each row per KV head, on average over all layers. Exceeds ``asked`` where
        that is below what the policy always keeps.
        """
        if not self.layers:
            return torch.zeros(0, dtype=torch.float64, device="cpu")
        pairs = torch.stack([kept.sum(-1).cpu() for kept in self.kept]).sum(0)
        return pairs.double() / sum(kept.shape[1] for kept in self.kept)

    @property
    def raised(self) -> Bool[Tensor, "b"]:
        """True for rows that keep more than ``asked``, because the policy always keeps more."""
        kept_pairs = self.held
        if self.asked is None or not len(kept_pairs):
            return kept_pairs.new_zeros(len(kept_pairs), dtype=torch.bool)
        return kept_pairs > self.asked.to(kept_pairs)

    @property
    def bytes_before(self) -> int:
        """Bytes of the stock cache in these layers."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors stored in these layers."""
        return sum(layer.bytes_after for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Seconds spent on scoring, selecting, merging and storing."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def remaining(self) -> Remaining:
        """Shares of the prompt that each part of the policy leaves."""
        layers, computed = self.layers, self.computed
        pairs = [int(layer.kept.sum()) for layer in layers]
        full = [layer.kept.numel() * layer.seen for layer in layers]
        bits = sum(layer.bits * count for layer, count in zip(layers, pairs, strict=True))
        return Remaining(
            visual=0 if self.visual is None else int(self.visual.sum()),
            computed=1.0 if computed is None else float(computed.mean()),
            pairs=sum(pairs) / max(1, sum(full)),
            bits=bits / max(1, sum(pairs)),
            made=max((layer.model_bits for layer in layers), default=0),
            bytes=self.bytes_after / max(1, self.bytes_before),
            evicts=any(
                layer.evicted is not None and bool((layer.evicted > 0).any()) for layer in layers
            ),
        )

    def __repr__(self) -> str:
        return f"Stats({self._total()})"

    def _total(self) -> str:
        """Describe all layers together, in one line."""
        share = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        return (
            f"{self.policy}: {self.kept_tokens:.1f} of {self.seen} tokens kept per KV head, "
            f"{self.bytes_after / 2**20:.2f} of {self.bytes_before / 2**20:.2f} MiB "
            f"({share:.1%}), {self.seconds * 1e3:.1f} ms"
        )

    def __str__(self) -> str:
        lines = [self._total()]
        if len((remaining := self.remaining).parts) > 1:
            lines.append(f"  {remaining}")
        elif (computed := self.computed) is not None:
            lines.append(f"  computed {float(computed.mean()):.1%} of the visual tokens")
        for layer in self.layers:
            lines.append(f"  layer {layer.layer}: {_format_counts(layer)}")
        return "\n".join(lines)


def _format_counts(layer: LayerStats) -> str:
    """Format the fates of a layer's tokens: kept, evicted, and not computed, if some were not."""
    kept = f"kept {layer.kept.tolist() if layer.compressed or layer.dropped is not None else 'all'}"
    if layer.dropped is None or layer.evicted is None:
        return kept
    return f"{kept}, evicted {layer.evicted.tolist()}, not computed {layer.dropped.tolist()}"


class Stopwatch:
    """Sum of seconds. On a GPU it records events, so that nothing waits for the device until
    ``seconds`` is read.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the seconds only: CUDA events belong to this process."""
        return {"_seconds": self.seconds, "_marks": []}

    @property
    def seconds(self) -> float:
        """Seconds so far; waits for events that are not done yet."""
        for _, end in self._marks:
            end.synchronize()
        self._add_done()
        return self._seconds

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Time the block."""
        if device.type == "cuda":
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(device)
            start.record(stream)
            yield
            end.record(stream)
            self._marks.append((start, end))
            self._add_done()
        else:
            start_s = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start_s

    def _add_done(self) -> None:
        """Add the times of events that the GPU has passed."""
        while self._marks and self._marks[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._marks.pop(0)
            self._seconds += start.elapsed_time(end) / 1000


def now(device: torch.device) -> float:
    """Return a clock's seconds, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def counted(notes: Sequence[Mapping[str, Tensor]]) -> dict[str, Int[Tensor, "b"]]:
    """Count the layers in which each boolean fact holds, by row. ``notes``: facts of each layer."""
    facts = {
        name: [layer[name].cpu() for layer in notes if name in layer]
        for name, note in (notes[-1] if notes else {}).items()
        if note.dtype == torch.bool and note.dim() == 1
    }
    return {name: torch.stack(tensors).sum(0) for name, tensors in facts.items()}
