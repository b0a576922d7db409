"""What compression did: pairs kept, bytes before and after, seconds spent."""

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
    """One layer. ``kept`` counts pairs per row and KV head, [b, h]; bytes are of all rows.

    ``bytes_before`` is what the stock cache would hold of the tokens seen, ``bytes_after`` the
    tensors held right after compression, room to grow included. ``seconds`` went into the policy's
    stages; what the prompt's attention adds up on its way is not in them. ``dropped`` counts each
    row's tokens that the layer never computed, [b]; None where it computed all. ``evicted`` counts
    the pairs that it computed and that are not kept, [b, h]. A number of a pair takes ``bits``, on
    average over pairs and without scales; the model ``made`` it in so many.
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
    made: int = 0

    @property
    def tokens(self) -> float:
        """Pairs kept per KV head, on average."""
        return float(self.kept.float().mean())


class Remaining(NamedTuple):
    """Of all layers that are compressed, and all rows: which share of the ``visual`` tokens given
    was ``computed``, on average over layers; which share of the full cache's ``pairs`` is held,
    padding counted; in how many ``bits`` a number, on average and without scales, of those that the
    model ``made`` it in; and which share of the full cache's ``bytes`` that is.
    """

    visual: int
    computed: float
    pairs: float
    bits: float
    made: int
    bytes: float
    evicts: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """What took part: of "computed", "pairs" and "bits", those that left something out."""
        said = {
            "computed": self.computed < 1,
            "pairs": self.evicts,
            "bits": self.bits < self.made,
        }
        return tuple(name for name, less in said.items() if less)

    def __str__(self) -> str:
        tokens = f"{self.computed * self.visual:,.0f} of {self.visual:,} visual tokens computed"
        said = {
            "computed": f"{tokens} ({self.computed:.0%}, mean of the layers)",
            "pairs": f"{self.pairs:.1%} of the pairs held",
            "bits": f"{self.bits:.1f} of {self.made} bits a number",
        }
        lines = [said[name] for name in said if name in self.parts]
        return "; ".join([*lines, f"{self.bytes:.1%} of the bytes"])


@dataclass
class Stats:
    """One prompt. ``seen`` counts tokens of the padded batch; only layers that can be compressed
    are listed (sliding-window and cross-attention layers are left alone).

    ``asked`` [b] are the tokens per KV head and layer that the budget comes to in each row; None
    where it follows from scores (auto), or the prompt was read elsewhere. ``noted`` has the facts
    that a score notes of a layer as true or false ("decoupled" of DAVID): in how many layers they
    are true, [b]; none where nothing was scored. ``visual`` counts the visual tokens of each row
    that were given, [b], where the policy drops some.
    """

    policy: str
    layers: list[LayerStats] = field(default_factory=list)
    asked: Int[Tensor, "b"] | None = None
    noted: Mapping[str, Int[Tensor, "b"]] = field(default_factory=dict)
    visual: Int[Tensor, "b"] | None = None

    @property
    def computed(self) -> Float[Tensor, "layers b"] | None:
        """Which share of its visual tokens each row had computed, layer by layer; None where the
        policy drops none.
        """
        if self.visual is None:
            return None
        given = self.visual.cpu().double().clamp_min(1)
        none = torch.zeros_like(given)
        lost = [none if one.dropped is None else one.dropped.cpu() / given for one in self.layers]
        return 1 - torch.stack([*lost, none])[:-1]

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
        """Pairs kept of each row, per KV head, on average over all layers. More than ``asked``
        where that is less than what the policy always keeps.
        """
        if not self.layers:
            return torch.zeros(0, dtype=torch.float64, device="cpu")
        pairs = torch.stack([kept.sum(-1).cpu() for kept in self.kept]).sum(0)
        return pairs.double() / sum(kept.shape[1] for kept in self.kept)

    @property
    def raised(self) -> Bool[Tensor, "b"]:
        """True of the rows that hold more than was asked for, as the policy always keeps more."""
        held = self.held
        if self.asked is None or not len(held):
            return held.new_zeros(len(held), dtype=torch.bool)
        return held > self.asked.to(held)

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

    @property
    def remaining(self) -> Remaining:
        """What each part of the policy leaves of the prompt."""
        layers, computed = self.layers, self.computed
        pairs = [int(one.kept.sum()) for one in layers]
        full = [one.kept.numel() * one.seen for one in layers]
        bits = sum(one.bits * held for one, held in zip(layers, pairs, strict=True))
        return Remaining(
            visual=0 if self.visual is None else int(self.visual.sum()),
            computed=1.0 if computed is None else float(computed.mean()),
            pairs=sum(pairs) / max(1, sum(full)),
            bits=bits / max(1, sum(pairs)),
            made=max((one.made for one in layers), default=0),
            bytes=self.bytes_after / max(1, self.bytes_before),
            evicts=any(one.evicted is not None and bool((one.evicted > 0).any()) for one in layers),
        )

    def __str__(self) -> str:
        share = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        lines = [
            f"{self.policy}: {self.kept_tokens:.1f} of {self.seen} tokens kept per KV head, "
            f"{self.bytes_after / 2**20:.2f} of {self.bytes_before / 2**20:.2f} MiB "
            f"({share:.1%}), {self.seconds * 1e3:.1f} ms"
        ]
        if len((left := self.remaining).parts) > 1:
            lines.append(f"  {left}")
        elif (computed := self.computed) is not None:
            lines.append(f"  computed {float(computed.mean()):.1%} of the visual tokens")
        for layer in self.layers:
            lines.append(f"  layer {layer.layer}: {_fates(layer)}")
        return "\n".join(lines)


def _fates(layer: LayerStats) -> str:
    """What became of a layer's tokens: kept, evicted, and, where some were, not computed."""
    kept = f"kept {layer.kept.tolist() if layer.compressed or layer.dropped is not None else 'all'}"
    if layer.dropped is None or layer.evicted is None:
        return kept
    return f"{kept}, evicted {layer.evicted.tolist()}, not computed {layer.dropped.tolist()}"


class Stopwatch:
    """Adds up seconds. A GPU's are told by marks that it passes, so that nothing waits for it
    before they are asked for.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __getstate__(self) -> dict[str, Any]:
        """A GPU's marks are of this process."""
        return {"_seconds": self.seconds, "_marks": []}

    @property
    def seconds(self) -> float:
        """So far; waits for what has not been done yet."""
        for _, end in self._marks:
            end.synchronize()
        self._add_done()
        return self._seconds

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Times the block."""
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
        """Whatever the GPU has passed is a number from now on."""
        while self._marks and self._marks[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._marks.pop(0)
            self._seconds += start.elapsed_time(end) / 1000


def now(device: torch.device) -> float:
    """Seconds of a clock, after the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def counted(notes: Sequence[Mapping[str, Tensor]]) -> dict[str, Int[Tensor, "b"]]:
    """Of what layers note of their rows as true or false: in how many layers it is true."""
    facts = {
        name: [layer[name].cpu() for layer in notes if name in layer]
        for name, note in (notes[-1] if notes else {}).items()
        if note.dtype == torch.bool and note.dim() == 1
    }
    return {name: torch.stack(tensors).sum(0) for name, tensors in facts.items()}
