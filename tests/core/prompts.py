"""Random prompts as tensors, and the stages that only tests need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import foveate
from foveate.cache.layer import Scores
from foveate.policies.amount import Amount
from foveate.policies.spec import stage


class Prompt(NamedTuple):
    """Layers of (q, k, v), the padding columns in front of each row, and what is visual."""

    layers: list[tuple[Tensor, Tensor, Tensor]]
    pads: list[int]
    vision: Tensor

    @property
    def columns(self) -> int:
        return self.layers[0][1].shape[2]

    @property
    def lengths(self) -> list[int]:
        return [self.columns - pad for pad in self.pads]

    @property
    def mask(self) -> Tensor:
        columns = torch.arange(self.columns)
        return (columns >= torch.tensor(self.pads)[:, None]).long()

    def rows(self, order: list[int]) -> Prompt:
        layers = [tuple(t[order] for t in layer) for layer in self.layers]
        return Prompt(layers, [self.pads[i] for i in order], self.vision[order])

    def alone(self, row: int) -> Prompt:
        """One row, without its padding."""
        cut = self.pads[row]
        layers = [tuple(t[row : row + 1, :, cut:] for t in layer) for layer in self.layers]
        return Prompt(layers, [0], self.vision[row : row + 1, cut:])


def prompt(lengths, *, h=2, g=1, d=4, e=4, depth=1, seed=0) -> Prompt:
    """Normal deviates, padding included: whatever stands there must not matter."""
    generator = torch.Generator().manual_seed(seed)
    b, n = len(lengths), max(lengths)

    def normal(heads, size):
        return torch.randn(b, heads, n, size, generator=generator)

    layers = [(normal(h * g, d), normal(h, d), normal(h, e)) for _ in range(depth)]
    vision = torch.rand(b, n, generator=generator) < 0.5
    return Prompt(layers, [n - length for length in lengths], vision)


prompts = st.builds(
    prompt,
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    h=st.integers(1, 3),
    g=st.integers(1, 2),
    d=st.integers(1, 5),
    e=st.integers(1, 5),
    depth=st.integers(1, 2),
    seed=st.integers(0, 9),
)


@stage("test_spy")
@dataclass(frozen=True, kw_only=True)
class Spy:
    """A score that keeps the layers that it was shown, and leaves a note in each."""

    shown: list[Any] = field(default_factory=list, compare=False)

    def queries(self, tokens):
        return 0

    def __call__(self, layer):
        self.shown.append(layer)
        return Scores(layer.pos.float(), notes={"index": torch.tensor([layer.ordinal])})


@stage("test_given_counts")
@dataclass(frozen=True, kw_only=True)
class GivenCounts:
    """A budget that returns what it was told to: per layer, per row, per head."""

    amount: Amount
    counts: Any = ()
    scope: str = "layer"
    calls: list[Any] = field(default_factory=list, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "amount", Amount.of(self.amount))

    def __call__(self, scored, tokens):
        self.calls.append((len(scored), tokens.tolist()))
        return [torch.tensor(self.counts[one.layer.ordinal]) for one in scored]


def compressed(policy, given, **options):
    """What a policy keeps of each layer of a prompt."""
    width, generator = 5, torch.Generator().manual_seed(1)
    weights = [
        torch.randn(q.shape[1], v.shape[3], width, generator=generator) for q, _, v in given.layers
    ]
    # of each token's own keys, so that rows keep theirs in any batch
    hidden = [k.transpose(1, 2).flatten(2) for _, k, _ in given.layers]
    hidden = [torch.nn.functional.pad(x, (0, width - x.shape[2])) for x in hidden]
    options = {"output_weights": weights, "hidden_states": hidden} | options
    return foveate.compress_tensors(policy, given.layers, given.vision, given.mask, **options)


def sets(kept, pads):
    """[row][head] -> kept positions, counted without padding."""
    b, h, _ = kept.mask.shape
    return [
        [[int(p) - pads[row] for p in kept.positions(row, head)] for head in range(h)]
        for row in range(b)
    ]
