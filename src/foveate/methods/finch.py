"""FINCH: what the question attends to, wherever in the document it stands.

The question is the end of the prompt: ``window`` is its number of tokens (kvpress finds it by a
delimiter that it adds to the vocabulary). Later queries share their attention among more tokens, so
each counts as often as it has tokens before it. With ``chunk`` every chunk of the document keeps
the same share, as each is compressed by itself.

Departs from the paper in: the prompt, which is read in one piece and compressed once, as in
kvpress, where the paper reads chunk after chunk, each with what was kept before and the question.
Departs from both in: keys, which are not rotated again (tokens keep their true positions), and the
budget, which is exact (kvpress rounds every chunk by itself).
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
from foveate.stages.budget.exact import filled
from foveate.stages.recent import before, most_recent
from foveate.stages.score.rows import over_group
from foveate.stages.score.window import counts_of, on_average, paid, window_of


@stage("question_attention", head_by_head=True)
class QuestionAttention:
    """Mean over the last ``window`` queries of the softmax in float32, each times the number of
    tokens before it (unless ``normalised`` is false), reduced over the query heads of a KV head.
    The window itself scores zero: selections protect it.

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
    """Each query of a row's window counts as often as there are tokens before it, on average."""
    real = window_of(slots, window)
    earlier = slots.q_pos[:, -real.shape[1] :].clamp_min(0)
    marked = ((real * earlier).float() / real.sum(-1, keepdim=True))[:, None]
    return WindowWeights(counts_of(marked, groups, group))


@stage("top_k_of_chunks", head_by_head=True)
class TopKOfChunks(TopK):
    """Beside what ``top_k`` always keeps: the highest scores of every chunk of ``length`` tokens,
    each of which keeps the same share (rounded; the total is exact).

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
    """How many each chunk keeps: one and what it always keeps at least, if there are so many."""
    held = sizes.sum(-1, keepdim=True).clamp_min(1)
    wish = (sizes * counts[..., None] // held).clamp_min(1)
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
    """Keeps what the question at the prompt's end attends to, and the question.

    ``window`` is the question's number of tokens; ``chunk``, if given, the tokens of each part of
    the document that keeps the same share.

    Args:
        window: Tokens of the question at the prompt's end.
        chunk: Tokens of each part that keeps the same share; null: one part.
        normalised: Weigh each query's attention by how many tokens it could see.

    Defaults:
        window: the question's length, which a prompt has to tell; the rest: kvpress
    """
    always = TopK(recent=window)
    return Policy(
        score=QuestionAttention(window=window, normalised=normalised, group=group),
        budget=Uniform(amount=budget),
        select=always if chunk is None else TopKOfChunks(recent=window, length=chunk),
    )
