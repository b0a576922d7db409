"""FINCH: tokens that the question attends to, wherever in the document they are.

The question is the end of the prompt: ``window`` is its number of tokens (kvpress finds it by a
delimiter that it adds to the vocabulary). Later queries share their attention among more tokens, so
each query's attention is multiplied by the number of tokens before it. With ``chunk`` every chunk
of the document keeps the same share, as if each were compressed by itself.

Differences from the paper: the prompt is read in one piece and compressed once, as in kvpress,
where the paper reads it chunk by chunk, each with what was kept before and the question.
Differences from both: keys are not rotated again (tokens keep their true positions), and the budget
is exact (kvpress rounds every chunk by itself).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores, WindowWeights
from foveate.cache.slots import Slots, derived
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Window
from foveate.stages import Reduction, TopK, Uniform
from foveate.stages.budget.exact_totals import filled
from foveate.stages.recent import before, most_recent
from foveate.stages.score.attention_rows import over_group
from foveate.stages.score.window import counts_of, on_average, paid, window_of


@stage("question_attention", head_by_head=True)
class QuestionAttention:
    """Mean attention of the last ``window`` queries, each times the number of tokens before it.

    The softmax is in float32, reduced over the query heads of a KV head. With ``normalised=False``
    all queries weigh the same. The window itself scores zero: selections protect it.

    Source: FINCH (arXiv:2408.00167), and FinchPress of kvpress.
    """

    window: Window = 32
    normalised: bool = True
    group: Reduction = "mean"

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights:
        rule = by_tokens_before if self.normalised else on_average
        return rule(slots, self.window, groups, self.group)

    def __call__(self, layer: Layer) -> Scores:
        sums = paid(layer, self.window_weights(layer.slots, layer.groups))
        scores = sums[:, :, 0] if self.group == "mean" else over_group(sums, self.group)
        return Scores(scores * before(layer.slots, self.window))


@derived
def by_tokens_before(slots: Slots, window: Window, groups: int, group: Reduction) -> WindowWeights:
    """Weight each query of a row's window by its number of earlier tokens, over the window."""
    real = window_of(slots, window)
    earlier = slots.q_pos[:, -real.shape[1] :].clamp_min(0)
    marked = ((real * earlier).float() / real.sum(-1, keepdim=True))[:, None]
    return WindowWeights(counts_of(marked, groups, group))


@stage("top_k_of_chunks", head_by_head=True)
class TopKOfChunks(TopK):
    """Selection of the highest scores of every chunk of ``length`` tokens, all by the same share.

    It is applied beside the tokens that ``top_k`` always keeps. Shares are rounded; the total is
    exact.

    Source: FINCH (arXiv:2408.00167), and FinchPress of kvpress.
    """

    length: Positive = 1024

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, slots = scored.scores.values, scored.layer.slots
        chunk = slots.pos.long().clamp_min(0) // self.length
        empty = chunk.new_zeros(*chunk.shape[:2], int(chunk.max()) + 1)
        sizes = empty.scatter_add(-1, chunk, slots.valid.long())
        always = empty.scatter_add(-1, chunk, (values == torch.inf).long())
        shares = _shared_out(counts, sizes, always)
        order = values.argsort(dim=-1, descending=True, stable=True)
        order = order.gather(-1, chunk.gather(-1, order).argsort(dim=-1, stable=True))
        all_slots = empty.scatter_add(-1, chunk, torch.ones_like(chunk))
        first = all_slots.cumsum(-1) - all_slots
        rank = order.argsort(dim=-1) - first.gather(-1, chunk)  # within the chunk; padding last
        return rank < shares.gather(-1, chunk)


def _shared_out(
    counts: Int[Tensor, "b h"], sizes: Int[Tensor, "b h c"], always: Int[Tensor, "b h c"]
) -> Int[Tensor, "b h c"]:
    """Return the number that each chunk keeps.

    At least one, and at least the tokens that are always kept, where the budget allows.
    """
    total = sizes.sum(-1, keepdim=True).clamp_min(1)
    wish = (sizes * counts[..., None] // total).clamp_min(1)
    heads = (t.flatten(0, 1).tolist() for t in (wish, always, sizes))
    rows = zip(*heads, counts.flatten().tolist(), strict=True)
    return sizes.new_tensor([filled(*row) for row in rows]).view_as(sizes)


@method("corallo2024finch")
def finch(
    *,
    budget: Amount,
    window: Window = 32,
    chunk: Positive | None = None,
    normalised: bool = True,
    group: Reduction = "mean",
) -> Policy:
    """Tokens that the question at the prompt's end attends to, and the question itself.

    Args:
        window: Tokens of the question at the prompt's end.
        chunk: Tokens of each part that keeps the same share; null: one part.
        normalised: Weigh each query's attention by how many tokens it could see.

    Defaults:
        `window`: here, set it to the question's length; the rest: kvpress
    """
    always = TopK(recent=window)
    return Policy(
        score=QuestionAttention(window=window, normalised=normalised, group=group),
        budget=Uniform(amount=budget),
        select=always if chunk is None else TopKOfChunks(recent=window, length=chunk),
    )
