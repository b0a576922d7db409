"""STaR-KV: attention of the last tokens, re-weighted in space, time and sharpness, for screenshots.

All heads of a layer keep the same tokens. Their score starts with SnapKV's attention, to which
visual tokens of the newest image add the norm of their hidden state. KV heads whose attention says
most about the place on the screen (mutual information) count more, tokens of older images less, and
the entropy of a layer's attention sets how sharp its scores are.

Differences from the authors' code:

* Every prompt is scored by itself. The release averages the mutual information and the attention
  pattern over the steps of an agent, and lets the former count from its sixth step on; here it
  counts from the first, and the pattern of the newest image is its own average.
* The sharpness is of each row. It does not reorder a layer's tokens, so it matters only beside a
  budget that compares layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores, WindowWeights
from foveate.cache.slots import Slots
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Factor, Kernel, Share, Temperature, Window
from foveate.stages import TopK, Uniform, WindowAttention
from foveate.stages.recent import is_recent
from foveate.stages.score.bases import hidden_states
from foveate.stages.score.window import window_of

BINS = 12
"""Rows and columns that an image is divided into."""
LEVELS = 16
"""Levels of attention, with as many tokens each."""
SMALL = 1e-8


class Past(NamedTuple):
    """Tokens of a row before its observation window, that some head has kept.

    ``scores`` are zero where a head has evicted the token; ``image`` is -1 at text. ``slots`` maps
    the slots of all heads to these tokens, where they are ``known``.
    """

    scores: Float[Tensor, "h t"]
    image: Int[Tensor, "t"]
    norms: Float[Tensor, "t"]
    slots: Int[Tensor, "h n"]
    known: Bool[Tensor, "h n"]

    @property
    def newest(self) -> Bool[Tensor, "t"]:
        """Tokens of the newest image."""
        return (self.image >= 0) & (self.image == self.image.max())


@stage("star", reads_hidden_states=True)
class Star:
    """One ranking for all heads of a layer: attention, re-weighted in space, time and sharpness.

    ``alpha`` weighs the norms of hidden states, whose softmax has ``temperature``. ``prior`` is the
    part of the score that the mutual information of heads decides, through a softmax with ``tau``.
    ``discount`` lowers tokens of older images. The exponent is 1 over a temperature between
    ``coldest`` and ``hottest``, which grows with the entropy of the layer's attention.

    Source: STaR-KV (arXiv:2606.01790), the release (``starkv_group_cluster.py``), Algorithm 1.
    """

    window: Window = 8
    kernel: Kernel = 5
    alpha: Factor = 2.0
    temperature: Temperature = 3.5
    prior: Share = 0.5
    tau: Temperature = 1.0
    discount: Factor = 0.1
    coldest: Temperature = 0.75
    hottest: Temperature = 1.25

    @property
    def _attention(self) -> WindowAttention:
        return WindowAttention(window=self.window, kernel=self.kernel)

    def queries(self, tokens: int) -> int:
        return self._attention.queries(tokens)

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights:
        return self._attention.window_weights(slots, groups)

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Append the norms of this pass's hidden states."""
        norms = torch.linalg.vector_norm(hidden_states(layer).float(), dim=-1)
        norms = F.pad(norms, (layer.k.shape[2] - norms.shape[1], 0))[:, None]
        return {"norms": layer.state.get("norms", 0) + norms.expand(layer.pos.shape)}

    def __call__(self, layer: Layer) -> Scores:
        queries = window_of(layer.slots, self.window).sum(-1)[:, None, None]
        sums = self._attention(layer).values * queries  # steps 1 and 2
        past = layer.valid & ~is_recent(layer.slots, self.window)
        values = torch.zeros_like(sums)
        for row in range(len(sums)):
            if bool(past[row].any()):
                tokens = _tokens(layer, sums[row], past[row], row)
                of_slots = self.of_tokens(tokens)[tokens.slots]
                values[row] = of_slots.masked_fill(~tokens.known, 0.0)
        return Scores(values)

    def of_tokens(self, past: Past) -> Float[Tensor, "t"]:
        """Score the tokens of one row."""
        scores = past.scores.clone()
        scores[:, past.newest] += self._boost(past.norms[past.newest])
        values = scores.mean(0)
        exponent = 1 / self._sharpness(values)
        weights = head_weights(scores[:, past.newest], self.tau) * len(scores)
        of_best = weights[scores.argmax(0)]  # steps 3 to 7
        values = values * (1 - self.prior + self.prior * of_best)
        values = values * torch.exp(-self.discount * ages(past.image))  # steps 8 and 9
        return values.clamp_min(0).pow(exponent)

    def _boost(self, norms: Float[Tensor, "v"]) -> Float[Tensor, "v"]:
        """Return ``alpha`` times the softmax of standardised norms, which visual tokens add."""
        spread = norms.std() if len(norms) > 1 else 0.0
        standardised = (norms - norms.mean()) / (spread + SMALL)
        return self.alpha * (standardised / self.temperature).softmax(0)

    def _sharpness(self, values: Float[Tensor, "t"]) -> Float[Tensor, ""]:
        """Return the temperature: linear in the entropy of the scores, over its maximum."""
        p = values / values.sum().clamp_min(SMALL)
        entropy = -(p * (p + SMALL).log()).sum() / (math.log(max(1, len(p))) + SMALL)
        return self.coldest + (self.hottest - self.coldest) * entropy


def _tokens(layer: Layer, sums: Float[Tensor, "h n"], past: Bool[Tensor, "h n"], row: int) -> Past:
    """Gather a row's tokens before its window from the slots of all heads."""
    pos = layer.pos[row]
    known = torch.unique(pos[past])
    slots = torch.searchsorted(known, pos.contiguous()).clamp_max(len(known) - 1)
    scores = sums.new_zeros(len(pos), len(known)).scatter_add_(1, slots, sums * past)
    image, norms = (
        torch.full((len(known),), low, dtype=t.dtype, device=t.device).scatter_reduce_(
            0, slots[past], t[row][past], "amax"
        )
        for t, low in ((layer.slots.known_image, -1), (layer.state["norms"], 0))
    )
    return Past(scores, image, norms, slots, past)


def ages(image: Int[Tensor, "t"]) -> Float[Tensor, "t"]:
    """Count the newer images of each token's image; 0 at text."""
    images = torch.unique(image[image >= 0])
    newer = len(images) - 1 - torch.searchsorted(images, image)
    return torch.where(image >= 0, newer, 0).float()


def head_weights(scores: Float[Tensor, "h v"], tau: float) -> Float[Tensor, "h"]:
    """Return the weight of each KV head, 1 in total: a softmax of its mutual information."""
    information = mutual_information(scores)
    low, high = information.aminmax()
    between = (information - low) / (high - low) if high - low >= 1e-12 else low.new_full((), 0.5)
    return (between.expand(len(scores)) / tau).softmax(0).float()


def mutual_information(scores: Float[Tensor, "h v"]) -> Float[Tensor, "h"]:
    """Return the mutual information of each head's attention to an image and the place in it.

    Attention counts by its rank, in ``LEVELS`` levels; places are cells of a grid. The image is
    taken for a square.
    """
    (heads, tokens), cells = scores.shape, BINS * BINS
    if not tokens:
        return scores.new_zeros(heads, dtype=torch.float64)
    order = scores.argsort(dim=-1, stable=True).argsort(dim=-1)
    level = order * LEVELS // tokens
    head = torch.arange(heads, device=scores.device)[:, None]
    index = (head * LEVELS + level) * cells + _cells(tokens, scores.device)
    counts = torch.bincount(index.flatten(), minlength=heads * LEVELS * cells)
    joint = counts.view(heads, LEVELS, cells).double() / tokens
    apart = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
    information = (joint * ((joint + 1e-12).log() - (apart + 1e-12).log())).sum((1, 2))
    return information.clamp_min(0).masked_fill(scores.clamp_min(0).sum(-1) <= 1e-12, 0.0)


def _cells(tokens: int, device: torch.device) -> Int[Tensor, "v"]:
    """Return the cell of each visual token, row by row."""
    height = max(1, round(math.sqrt(tokens)))
    width = -(-tokens // height)
    token = torch.arange(tokens, device=device)
    row, column = token // width, token % width
    down = ((2 * row + 1) * BINS // (2 * height)).clamp_max(BINS - 1)
    across = ((2 * column + 1) * BINS // (2 * width)).clamp_max(BINS - 1)
    return down * BINS + across


@method("han2026starkv")
def star_kv(
    *,
    budget: Amount,
    window: Window = 8,
    kernel: Kernel = 5,
    alpha: Factor = 2.0,
    temperature: Temperature = 3.5,
    prior: Share = 0.5,
    tau: Temperature = 1.0,
    discount: Factor = 0.1,
    coldest: Temperature = 0.75,
    hottest: Temperature = 1.25,
) -> Policy:
    """Tokens that recent ones attend to, weighted by place, age and entropy; for screenshots.

    Args:
        alpha: Weight of the norms of hidden states of the newest image.
        temperature: Temperature of the softmax of these norms.
        prior: Share of a score that the heads' mutual information decides.
        tau: Temperature of the softmax of the heads' mutual information.
        discount: Rate at which tokens of older images lose.
        coldest: Lowest temperature of the scores, at no entropy.
        hottest: Highest temperature of the scores, at the largest entropy.

    Defaults:
        release, its script for ScreenSpot-Pro
    """
    score = Star(
        window=window,
        kernel=kernel,
        alpha=alpha,
        temperature=temperature,
        prior=prior,
        tau=tau,
        discount=discount,
        coldest=coldest,
        hottest=hottest,
    )
    return Policy(score=score, budget=Uniform(amount=budget), select=TopK(recent=window))
