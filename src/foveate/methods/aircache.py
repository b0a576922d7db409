"""AirCache: visual tokens that the most important text attends to, with more in focused layers.

The text tokens to which the last token attends most are the elite window; the attention that they
pay to a visual token is its importance. Text comes before images, as the paper keeps all text. The
rest of the budget is shared among the layers by the strength and the skewness of the elite's
attention to images: how much they attend to them, and how unevenly.

No code was released. Choices made here where the paper is silent:

* Its equations have no heads. Each KV head has its own elite, by the mean over its query heads;
  strength and skewness are means over heads.
* "Text" are the tokens after the last image (`text="all"`: those before it, too), or the last token
  if it is visual.
* The elite's attention is causal.
* Strength and skewness of a layer are each divided by their mean over the layers; a negative
  skewness counts as zero.
* The surplus of a layer that cannot use its share goes to the others, by their weights.
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
from foveate.stages.budget.exact_totals import by_layer, proportional

Text = Literal["instruction", "all"]


@stage("elite_window", head_by_head=True)
class EliteWindow:
    """Mean attention of the elite text tokens to each visual token.

    The softmax is over visual tokens and the elite. A text token scores the attention that the last
    token pays it among text. The elite are the text tokens that get at least ``alpha`` of the last
    token's highest attention to any of them.

    Notes, [b] each, are means over heads: "strength", the sum over visual tokens, and "skewness".

    Source: AirCache (arXiv:2503.23956), section 3, elite observation window.
    """

    alpha: Share = 0.9
    text: Text = "instruction"

    def queries(self, tokens: int) -> int:
        return 2**31  # all: the number of text tokens is not known in advance

    def __call__(self, layer: Layer) -> Scores:
        text_queries = self._text_queries(layer)
        vision = layer.vision & layer.valid
        newest = layer.pos == layer.lengths[:, None, None] - 1
        text_slots = layer.valid & (~vision | newest)
        if self.text == "instruction":
            first = layer.q_pos.gather(1, text_queries.long().argmax(-1, keepdim=True))
            text_slots = text_slots & (layer.pos >= first[..., None])
        among_text = _paid(layer, slice(-1, None), text_slots)[:, :, 0]
        elite = text_slots & (among_text >= self.alpha * among_text.amax(-1, keepdim=True))
        votes = _own(layer, elite) & text_queries[:, None]
        voters = votes.any(1).any(0).nonzero()[:, 0]
        paid = _paid(layer, voters, vision | elite) * votes[:, :, voters, None]
        mean = paid.sum(2) / votes.sum(-1, keepdim=True).clamp_min(1)
        strength = (mean * vision).sum(-1).mean(-1)
        notes = {"strength": strength, "skewness": skewness(mean, vision).mean(-1)}
        return Scores(torch.where(vision, mean, among_text), notes=notes)

    def _text_queries(self, layer: Layer) -> Bool[Tensor, "b m"]:
        """Mark text queries: those after the last visual token, or all; always the last query."""
        real = layer.q_pos >= 0
        later = layer.q_vision.long().flip(1).cumsum(1).flip(1) > 0
        text_queries = real & ~(later if self.text == "instruction" else layer.q_vision)
        text_queries[:, -1] = True
        return text_queries


def _paid(
    layer: Layer, queries: slice | Int[Tensor, "r"], among: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h r n"]:
    """Return attention to the marked slots alone, averaged over a KV head's query heads.

    The softmax is over the marked slots alone.
    """
    visible = layer.slots.visible_to(queries) & among[:, :, None]
    return window_attention(layer.q[:, :, queries], layer.k, visible, layer.scale).mean(2)


def _own(layer: Layer, elite: Bool[Tensor, "b h n"]) -> Bool[Tensor, "b h m"]:
    """Mark each query whose own token's slot is marked as elite."""
    q_pos = layer.q_pos[:, None].expand(*elite.shape[:2], -1).contiguous()
    slot = torch.searchsorted(layer.pos.contiguous(), q_pos).clamp_max(elite.shape[2] - 1)
    return elite.gather(2, slot) & (layer.pos.gather(2, slot) == q_pos)


def skewness(values: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h"]:
    """Return the sample skewness of marked values; zero for fewer than three, or equal ones."""
    count = marked.sum(-1)
    x = values.double().masked_fill(~marked, 0.0)
    centred = (x - (x.sum(-1) / count.clamp_min(1))[..., None]).masked_fill(~marked, 0.0)
    deviation = (centred.square().sum(-1) / (count - 1).clamp_min(1)).sqrt()
    cubes = (centred / deviation[..., None].clamp_min(1e-30)).pow(3).sum(-1)
    factor = count.float() / ((count - 1) * (count - 2)).clamp_min(1)
    return torch.where((count > 2) & (deviation > 1e-12), factor * cubes, 0.0)


@stage("strength_and_skewness")
class StrengthAndSkewness(AmountBudget):
    """Budget that gives every layer its text, and visual tokens by strength and skewness.

    The visual tokens that the budget holds besides all text are shared by the notes "strength" and
    "skewness" of the score, each over its mean, half and half.

    Source: AirCache (arXiv:2503.23956), section 3, layer-wise budget allocation.
    """

    scope: Scope = field(default="model", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        if any(
            not {"strength", "skewness"} <= scored_layer.scores.notes.keys()
            for scored_layer in scored
        ):
            raise InvalidParameter(
                "the budget strength_and_skewness needs a score with notes 'strength' and "
                "'skewness', such as elite_window(), alone or inside text_prior."
            )
        weights = _over_mean(scored, "strength") + _over_mean(scored, "skewness")
        visual = torch.stack(
            [_count_of_kind(scored_layer, scored_layer.layer.vision) for scored_layer in scored],
            dim=1,
        )
        text = torch.stack(
            [_count_of_kind(scored_layer, ~scored_layer.layer.vision) for scored_layer in scored],
            dim=1,
        )
        rows = []
        for row, row_tokens in enumerate(tokens.tolist()):
            left = row_tokens * len(scored) - int(text[row].sum())
            none = torch.zeros_like(visual[row])
            visual_counts = proportional(weights[row], none, visual[row], max(0, left))
            rows.append(
                text[row] + visual_counts if left >= 0 else torch.full_like(none, row_tokens)
            )
        return by_layer(scored, torch.stack(rows), tokens)


def _over_mean(scored: Sequence[Scored], name: str) -> Float[Tensor, "b L"]:
    """Return a note of every layer over its mean; 1 where the mean is zero."""
    means = [
        scored_layer.scores.notes[name].double().cpu().clamp_min(0.0) for scored_layer in scored
    ]
    notes = torch.stack(means, dim=1)
    mean = notes.mean(-1, keepdim=True)
    return torch.where(mean > 0, notes / mean.clamp_min(1e-30), 1.0)


def _count_of_kind(scored_layer: Scored, kind: Bool[Tensor, "b h n"]) -> Int[Tensor, "b"]:
    """Return the most slots of one kind (visual or text) that a head of this layer has."""
    return (kind & scored_layer.layer.valid).sum(-1).amax(-1).cpu()


@method("huang2025aircache", adds=("score", "budget"))
def aircache(
    *,
    budget: Amount,
    alpha: Share = 0.9,
    text: Text = "instruction",
    recent: Recent = 1,
    protect_text: bool = False,
) -> Policy:
    """Text first, then the visual tokens that its most important tokens attend to.

    Layers in which these attend to images strongly and unevenly keep more (section 3).

    ``alpha`` is the share of the last token's highest attention that makes a text token elite.

    Args:
        alpha: Share of the last token's highest attention that makes a text token elite.
        text: Text that the elite come from: after the last image, or all.

    Defaults:
        paper; `recent`: here, the last token
    """
    return Policy(
        score=TextPrior(of=EliteWindow(alpha=alpha, text=text)),
        budget=StrengthAndSkewness(amount=budget),
        select=TopK(recent=recent, protect_text=protect_text),
    )
