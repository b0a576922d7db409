"""Random prompts with images, what a policy keeps of them, and how that is compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

import foveate
from foveate.compression.pipeline import observed, score
from foveate.compression.tensors import layers_of

# A layout tells which of t tokens are visual. The second image of "two images" reaches into the
# last tokens, so that queries of both kinds vote.
LAYOUTS: dict[str, Callable[[int], list[bool]]] = {
    "text": lambda t: [False] * t,
    "image": lambda t: [True] * t,
    "two images": lambda t: [t // 8 <= i < 3 * t // 8 or 5 * t // 8 <= i < t - 2 for i in range(t)],
    "text last": lambda t: [t // 8 <= i < t // 2 for i in range(t)],
}


class Visual(NamedTuple):
    """A batch of prompts, padded on the left, and which tokens of each row are visual."""

    layers: list[tuple[Tensor, Tensor, Tensor]]
    images: list[list[bool]]

    @property
    def columns(self) -> int:
        return self.layers[0][1].shape[2]

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.images]

    @property
    def pads(self) -> list[int]:
        return [self.columns - length for length in self.lengths]

    @property
    def mask(self) -> Tensor:
        return (torch.arange(self.columns) >= torch.tensor(self.pads)[:, None]).long()

    @property
    def vision(self) -> Tensor:
        """Padding is marked visual: whatever stands there must not matter."""
        return torch.tensor(
            [[True] * pad + row for pad, row in zip(self.pads, self.images, strict=True)]
        )

    def rows(self) -> range:
        return range(len(self.images))

    def alone(self, layer: int, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of one row without its padding, [heads, t, d], as the literals take them."""
        q, k, v = (x[row, :, self.pads[row] :] for x in self.layers[layer])
        return q, k, v

    def keeps(self, policy: foveate.Policy, **options: bool) -> list[foveate.Kept]:
        return foveate.compress_tensors(
            policy, self.layers, vision=self.vision, attention_mask=self.mask, **options
        )

    def scored(self, policy: foveate.Policy) -> list[Any]:
        """What the pipeline hands to budgets and selections; notes go from layer to layer."""
        notes, made = [], []
        for layer in layers_of(self.layers, self.vision, self.mask, None):
            slots = layer.slots.with_budget(policy.amount.tokens(layer.lengths, 0))
            layer = replace(layer, state=observed(policy, layer), earlier=tuple(notes), slots=slots)
            made.append(score(policy, layer))
            notes.append(made[-1].scores.notes)
        return made


def visual(lengths, layout="two images", *, h=2, g=1, d=8, depth=1, seed=0) -> Visual:
    """Normal deviates, padding included; ``layout`` of every row, or one for each."""
    generator = torch.Generator().manual_seed(seed)

    def normal(heads):
        return torch.randn(len(lengths), heads, max(lengths), d, generator=generator)

    layers = [(normal(h * g), normal(h), normal(h)) for _ in range(depth)]
    layouts = [layout] * len(lengths) if isinstance(layout, str) else layout
    return Visual(layers, [LAYOUTS[name](t) for name, t in zip(layouts, lengths, strict=True)])


def recorded(layers, image_mask) -> Visual:
    """A recorded prompt of one row."""
    return Visual(layers, [image_mask.bool().tolist()])


def tokens_of(budget: int | float, length: int) -> int:
    """Tokens per head that a budget keeps of a prompt, in exact arithmetic."""
    if isinstance(budget, int):
        return min(budget, length)
    return max(1, math.floor(Fraction(str(budget)) * length))


def sets(kept: foveate.Kept, row: int = 0, pad: int = 0) -> list[list[int]]:
    """Kept positions of every head, counted within the row."""
    return [(kept.positions(row, head) - pad).tolist() for head in range(kept.mask.shape[1])]


def assert_keeps(policy, given: Visual, literal) -> None:
    """The same sets as ``literal(layer, row, tokens)``, the positions of every head, in each row
    that does not fit the budget, and everything of those that do.
    """
    for layer, kept in enumerate(given.keeps(policy)):
        for row, length in enumerate(given.lengths):
            tokens = int(policy.amount.tokens(torch.tensor([length]), 0))
            if length <= tokens:
                expected = [list(range(length))] * kept.mask.shape[1]
            else:
                expected = literal(layer, row, tokens)
            assert sets(kept, row, given.pads[row]) == expected, f"layer {layer}, row {row}"


def upto(scores, chosen) -> list[int]:
    """``chosen`` of ``scores``, where equal scores at its border, of which torch's topk takes any,
    go to the earlier positions.
    """
    border = min(scores[i] for i in chosen)
    above = [i for i in scores if scores[i] > border]
    tied = sorted(i for i in scores if scores[i] == border)
    assert set(above) <= set(chosen) <= set(above + tied)
    return above + tied[: len(chosen) - len(above)]
