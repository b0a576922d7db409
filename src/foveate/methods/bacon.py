"""BACON: attention of the prompt's last query that the window's average hides.

It corrects any score B of the observation window. Evidence E is the last query's attention beyond
B. It counts more where neighbouring slots and the layers before have evidence, too, since isolated
spikes are noise. The score is B + lambda (E + its local mean + its trace over layers). Lambda
scales the spread of the evidence to ``strength`` times that of B, both over the best ``region``
times K slots, where K is the budget beside the window; it is smaller where there is little
evidence.

The source is the authors' repository as it was before its code was withdrawn (until the review is
over). Differences: K is the given budget, also where layers or heads keep different numbers (there
it is the layer's own); float32 throughout; evidence of earlier layers is read by position, so that
it is right while decoding, too. Of its variants, those of ``evidence`` are here.
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
from foveate.stages.score.attention_rows import over_group

Evidence = Literal["trace", "local", "plain"]
EPS = 1e-8


@stage("boundary_evidence", head_by_head=True)
class BoundaryEvidence:
    """Another score, corrected by the last query's attention beyond it.

    ``window``, ``kernel``, ``pool`` and ``group`` are those of the wrapped window score: the last
    query's attention is pooled and reduced the same way.

    ``evidence`` "plain" is E alone; "local" adds its mean over ``near`` slots; "trace" also adds
    its mean over the last ``layers`` layers, and scales all of it by how much evidence there is.
    The note "evidence" is E, by head and position.

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
        """Return the last query's attention, pooled and reduced like the window's score."""
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
        """Return lambda, the weight of the evidence in each head."""
        tokens = budget_of(layer.slots, self.window)
        free_slots = (tokens - recent_tokens(self.window, tokens)).clamp_min(0)
        count = (free_slots.float() * self.region).long().clamp_min(1)
        of_base, of_evidence = (_best(x, outside, count) for x in (base, traced))
        weight = self.strength * of_base.spread / (of_evidence.spread + EPS)
        if self.evidence == "trace":
            weight = weight * (of_evidence.mean / (of_base.mean + EPS)).clamp(0.0, 1.0)
        return weight[..., None]


class Best(NamedTuple):
    """Mean and standard deviation of the best values of each head."""

    mean: Float[Tensor, "b h"]
    spread: Float[Tensor, "b h"]


def _best(
    values: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"], count: Int[Tensor, "b"]
) -> Best:
    """Return mean and deviation of the ``count`` highest marked values (fewer: of all)."""
    ranked = values.masked_fill(~marked, -torch.inf).sort(dim=-1, descending=True).values
    number = torch.minimum(marked.sum(-1), count[:, None]).clamp_min(1)
    first = torch.arange(values.shape[-1], device=values.device) < number[..., None]
    first = first & ranked.isfinite()
    mean = ranked.where(first, 0.0).sum(-1) / number
    centred = (ranked - mean[..., None]).where(first, 0.0)
    return Best(mean, (centred.square().sum(-1) / number).sqrt())


def _trace(layer: Layer, layers: int) -> Float[Tensor, "b h n"] | float:
    """Return the mean evidence of the layers before, by this layer's slots.

    Zero in the first layer. Layers with another number of heads are skipped.
    """
    heads = layer.k.shape[1]
    last: list[Mapping[str, Tensor]] = list(layer.earlier[-layers:]) if layers else []
    traces = [note["evidence"] for note in last if note["evidence"].shape[1] == heads]
    if not traces:
        return 0.0
    mean = torch.stack([trace.to(layer.k.device) for trace in traces]).mean(0)
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
    """Tokens that the last queries attend to, and tokens that only the very last query attends to.

    Score: B + lambda (E + local mean of E + trace of E over layers), where B is the window's score
    (section 3).

    ``strength`` is the spread of the evidence relative to that of the window's score.

    Args:
        evidence: Evidence of the last query: plain, with neighboring slots, or with layers too.
        near: Neighboring tokens that evidence is averaged over.
        layers: The last layers that evidence is averaged over.
        strength: Weight of the evidence relative to the window's score, e.g. 0.5.
        region: Slots that lambda is measured on, as a multiple of a head's free budget.

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
