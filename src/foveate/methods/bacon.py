"""BACON: what the prompt's last query sees and the window's average hides.

Over any score B of the observation window: evidence E is what the last query pays beyond it; it
counts more where its neighbours and the layers before have it, too, as isolated spikes are noise.
The score is B + lambda (E + its neighbourhood + its trace), where lambda brings the spread of the
one to a `strength` of the other's, among the best `region` times K of each, K being the places that
the budget leaves beside the window; and less where there is little evidence.

As the authors' repository had it, before its code was withdrawn (until the review is over). Departs
from it in: K, which is that of the budget as given, also where layers or heads keep different
numbers (there it is the layer's own); float32 throughout; evidence of earlier layers by position,
so that it is right while decoding, too. Of its variants, those of `evidence` are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Factor, Kernel, Window
from foveate.policies.protocols import Score
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention
from foveate.stages.recent import before, budget_of, recent_tokens
from foveate.stages.score.rows import over_group

Evidence = Literal["trace", "local", "plain"]
EPS = 1e-8


@stage("boundary_evidence", head_by_head=True)
class BoundaryEvidence:
    """The score that it wraps, and evidence of the last query beyond it. ``window``, ``kernel``,
    ``pool`` and ``group`` are those of the window's score: the last query's goes the same way.

    ``evidence`` "plain" is E alone; "local" adds its mean over ``near`` slots, "trace" also its
    mean over the last ``layers`` layers, and weighs all by how much of it there is. The note
    "evidence" is E, by head and position.

    Source: BACON (arXiv:2606.14782), section 3, and its repository.
    """

    of: Score
    window: Window = 32
    kernel: Kernel = 5
    pool: Pool = "avg"
    group: Reduction = "mean"
    evidence: Evidence = "trace"
    near: Kernel = 5
    layers: Count = 4
    strength: Factor = 0.5
    region: Factor = 2.0

    def queries(self, tokens: int) -> int:
        return max(1, self.of.queries(tokens))

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        outside = before(layer.slots, self.window) * layer.valid
        base = scores.values.float().masked_fill(outside == 0, 0.0)
        extra = (self._last(layer, outside) - base).clamp_min(0.0) * outside
        traced = extra
        if self.evidence != "plain":
            traced = traced + F.avg_pool1d(extra, self.near, stride=1, padding=self.near // 2)
        if self.evidence == "trace":
            traced = traced + _trace(layer, self.layers)
        traced = traced * outside
        values = base + self._weight(layer, base, traced, outside > 0) * traced
        notes = {**scores.notes, "evidence": _by_position(layer, extra)}
        parts = {"importance": base, **scores.parts}
        return scores._replace(values=values, parts=parts, notes=notes)

    def _last(self, layer: Layer, outside: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
        """What the last query pays, as the window's score has it."""
        visible = layer.slots.visible(1)
        paid = window_attention(layer.q[:, :, -1:], layer.k, visible, layer.scale)[:, :, :, 0]
        like = WindowAttention(window=self.window, kernel=self.kernel, pool=self.pool)
        return like.pooled(over_group(paid, self.group) * outside) * outside

    def _weight(
        self,
        layer: Layer,
        base: Float[Tensor, "b h n"],
        traced: Float[Tensor, "b h n"],
        outside: Bool[Tensor, "b h n"],
    ) -> Float[Tensor, "b h 1"]:
        """Lambda of each head."""
        tokens = budget_of(layer.slots, self.window)
        places = (tokens - recent_tokens(self.window, tokens)).clamp_min(0)
        count = (places.float() * self.region).long().clamp_min(1)
        of_base, of_evidence = (_best(x, outside, count) for x in (base, traced))
        weight = self.strength * of_base.spread / (of_evidence.spread + EPS)
        if self.evidence == "trace":
            weight = weight * (of_evidence.mean / (of_base.mean + EPS)).clamp(0.0, 1.0)
        return weight[..., None]


class Best(NamedTuple):
    """Mean and standard deviation."""

    mean: Float[Tensor, "b h"]
    spread: Float[Tensor, "b h"]


def _best(
    values: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"], count: Int[Tensor, "b"]
) -> Best:
    """Of the ``count`` highest of the marked ones, or all of them."""
    ranked = values.masked_fill(~marked, -torch.inf).sort(dim=-1, descending=True).values
    number = torch.minimum(marked.sum(-1), count[:, None]).clamp_min(1)
    first = torch.arange(values.shape[-1], device=values.device) < number[..., None]
    first = first & ranked.isfinite()
    mean = ranked.where(first, 0.0).sum(-1) / number
    apart = (ranked - mean[..., None]).where(first, 0.0)
    return Best(mean, (apart.square().sum(-1) / number).sqrt())


def _trace(layer: Layer, layers: int) -> Float[Tensor, "b h n"] | float:
    """The mean evidence of the layers before; none in the first, and of other numbers of heads."""
    heads = layer.k.shape[1]
    last: list[Mapping[str, Tensor]] = list(layer.earlier[-layers:]) if layers else []
    traces = [note["evidence"] for note in last if note["evidence"].shape[1] == heads]
    if not traces:
        return 0.0
    mean = torch.stack([one.to(layer.k.device) for one in traces]).mean(0)
    return mean.gather(2, layer.pos.clamp(0, mean.shape[2] - 1)) * layer.valid


def _by_position(layer: Layer, values: Float[Tensor, "b h n"]) -> Float[Tensor, "b h t"]:
    ordered = values.new_zeros(*values.shape[:2], int(layer.lengths.max()))
    return ordered.scatter_add_(2, layer.pos.clamp_min(0), values * layer.valid)


@method("chen2026bacon", adds=("score",), wraps=True)
def bacon(
    *,
    budget: Amount,
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
    evidence: Evidence = "trace",
    near: Kernel = 5,
    layers: Count = 4,
    strength: Factor = 0.5,
    region: Factor = 2.0,
) -> Policy:
    """Keeps what the last queries attend to, and what the very last one sees beyond their average.

    ``strength`` is how much that counts, beside the spread of the window's score.

    Args:
        evidence: The last query's evidence: alone, with its neighbors, or with layers too.
        near: Neighboring tokens that evidence is averaged over.
        layers: The last layers that evidence is averaged over.
        strength: How much evidence counts beside the spread of the window's score.
        region: Evidence counts among the best so many times a head's places.

    Defaults:
        release, before it was withdrawn
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    score = BoundaryEvidence(
        of=attention,
        window=window,
        kernel=kernel,
        pool=pool,
        group=group,
        evidence=evidence,
        near=near,
        layers=layers,
        strength=strength,
        region=region,
    )
    return Policy(score=score, budget=Uniform(amount=budget), select=TopK(recent=window))
