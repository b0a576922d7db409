"""AirCache: what the words that matter look at; more for layers that look closely.

A few text tokens, to which the last one attends most, are the elite window; a visual token is as
important as they find it. Text stands before images, as the paper keeps all of it. What it leaves
of the budget is shared out among the layers by how much the elite pays to images and how unevenly:
the strength and the skewness of that distribution.

No code was released. Settled here where the paper is silent: its equations have no heads (each KV
head has an elite of its own, by the mean over its query heads; strength and skewness are means over
heads); "text" are the tokens behind the last image (`text="all"`: those before it, too), or the
last token if it is visual; the elite's attention is causal; both of a layer's numbers are divided
by their mean over the layers, a negative skewness counting as none; what a layer cannot hold goes
to the others, by their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Recent, Share
from foveate.policies.protocols import Scope
from foveate.stages import TextPrior, TopK
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact import by_layer, proportional

Text = Literal["instruction", "all"]


@stage("elite_window", head_by_head=True)
class EliteWindow:
    """What a visual token gets from the elite text tokens on average, of a softmax over visual
    tokens and the elite; a text token, what the last one pays it among text. The elite are text
    tokens that get at least ``alpha`` of the most that the last one pays to any.

    Notes, [b] each, are means over heads: "strength", the sum over visual tokens, and "skewness".

    Source: AirCache (arXiv:2503.23956), section 3, elite observation window.
    """

    alpha: Share = 0.9
    text: Text = "instruction"

    def queries(self, tokens: int) -> int:
        return 2**31  # how much text there is is not known beforehand

    def __call__(self, layer: Layer) -> Scores:
        asking = self._asking(layer)
        vision = layer.vision & layer.valid
        newest = layer.pos == layer.lengths[:, None, None] - 1
        text_slots = layer.valid & (~vision | newest)
        if self.text == "instruction":
            first = layer.q_pos.gather(1, asking.long().argmax(-1, keepdim=True))
            text_slots = text_slots & (layer.pos >= first[..., None])
        among_text = _paid(layer, slice(-1, None), text_slots)[:, :, 0]
        elite = text_slots & (among_text >= self.alpha * among_text.amax(-1, keepdim=True))
        votes = _own(layer, elite) & asking[:, None]
        some = votes.any(1).any(0).nonzero()[:, 0]
        paid = _paid(layer, some, vision | elite) * votes[:, :, some, None]
        mean = paid.sum(2) / votes.sum(-1, keepdim=True).clamp_min(1)
        strength = (mean * vision).sum(-1).mean(-1)
        notes = {"strength": strength, "skewness": skewness(mean, vision).mean(-1)}
        return Scores(torch.where(vision, mean, among_text), notes=notes)

    def _asking(self, layer: Layer) -> Bool[Tensor, "b m"]:
        """Queries of text: behind which no visual token stands, or all. The last one always is."""
        real = layer.q_pos >= 0
        later = layer.q_vision.long().flip(1).cumsum(1).flip(1) > 0
        asking = real & ~(later if self.text == "instruction" else layer.q_vision)
        asking[:, -1] = True
        return asking


def _paid(
    layer: Layer, some: slice | Int[Tensor, "r"], among: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h r n"]:
    """What these queries pay to the slots marked, among which their softmax is; the mean over the
    query heads of a KV head.
    """
    visible = layer.slots.visible_to(some) & among[:, :, None]
    return window_attention(layer.q[:, :, some], layer.k, visible, layer.scale).mean(2)


def _own(layer: Layer, elite: Bool[Tensor, "b h n"]) -> Bool[Tensor, "b h m"]:
    """Whether the slot of each query's own token is marked."""
    q_pos = layer.q_pos[:, None].expand(*elite.shape[:2], -1).contiguous()
    place = torch.searchsorted(layer.pos.contiguous(), q_pos).clamp_max(elite.shape[2] - 1)
    return elite.gather(2, place) & (layer.pos.gather(2, place) == q_pos)


def skewness(values: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h"]:
    """The sample skewness of the marked ones; zero for fewer than three, or for equal ones."""
    count = marked.sum(-1)
    x = values.double().masked_fill(~marked, 0.0)
    apart = (x - (x.sum(-1) / count.clamp_min(1))[..., None]).masked_fill(~marked, 0.0)
    deviation = (apart.square().sum(-1) / (count - 1).clamp_min(1)).sqrt()
    cubes = (apart / deviation[..., None].clamp_min(1e-30)).pow(3).sum(-1)
    factor = count.float() / ((count - 1) * (count - 2)).clamp_min(1)
    return torch.where((count > 2) & (deviation > 1e-12), factor * cubes, 0.0)


@stage("strength_and_skewness")
class StrengthAndSkewness(AmountBudget):
    """Every layer has its text and a share of the visual tokens that the budget holds beside all
    text: by the notes "strength" and "skewness" of its score, each over its mean, half and half.

    Source: AirCache (arXiv:2503.23956), section 3, layer-wise budget allocation.
    """

    scope: Scope = field(default="model", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        if any(not {"strength", "skewness"} <= one.scores.notes.keys() for one in scored):
            raise InvalidParameter(
                "the budget strength_and_skewness needs a score that notes both of every layer, "
                "such as elite_window(), alone or inside text_prior."
            )
        weights = _over_mean(scored, "strength") + _over_mean(scored, "skewness")
        visual = torch.stack([_held(one, one.layer.vision) for one in scored], dim=1)
        text = torch.stack([_held(one, ~one.layer.vision) for one in scored], dim=1)
        rows = []
        for row, each in enumerate(tokens.tolist()):
            left = each * len(scored) - int(text[row].sum())
            none = torch.zeros_like(visual[row])
            seen = proportional(weights[row], none, visual[row], max(0, left))
            rows.append(text[row] + seen if left >= 0 else torch.full_like(none, each))
        return by_layer(scored, torch.stack(rows), tokens)


def _over_mean(scored: Sequence[Scored], name: str) -> Float[Tensor, "b L"]:
    """A note of every layer over its mean; one where that is zero."""
    means = [one.scores.notes[name].double().cpu().clamp_min(0.0) for one in scored]
    notes = torch.stack(means, dim=1)
    mean = notes.mean(-1, keepdim=True)
    return torch.where(mean > 0, notes / mean.clamp_min(1e-30), 1.0)


def _held(one: Scored, kind: Bool[Tensor, "b h n"]) -> Int[Tensor, "b"]:
    """How many of a kind a head holds, at most."""
    return (kind & one.layer.valid).sum(-1).amax(-1).cpu()


@method("huang2025aircache", adds=("score", "budget"))
def aircache(
    *,
    budget: Amount,
    alpha: Share = 0.9,
    text: Text = "instruction",
    recent: Recent = 1,
    protect_text: bool = False,
) -> Policy:
    """Keeps text first, and what its most important tokens look at, more where they look closely.

    ``alpha`` is the share of the last token's highest attention that makes a text token elite.

    Args:
        alpha: Share of the last token's highest attention that makes a text token elite.
        text: Which text the elite are taken from.

    Defaults:
        paper; `recent`: here, the last token
    """
    return Policy(
        score=TextPrior(of=EliteWindow(alpha=alpha, text=text)),
        budget=StrengthAndSkewness(amount=budget),
        select=TopK(recent=recent, protect_text=protect_text),
    )
