"""StreamMem: video memory by the attention of chat-template tokens, with a prototype of each frame.

The text that the chat template puts after a user's message is read after the cache and then
discarded; the attention of its tokens stands in for future questions (``proxy`` gives another
text). Visual tokens of the memory and of the newest frames compete for one budget, layer by layer
(text comes before them). Beside the highest scores a prototype of every new frame stays: the mean
of its keys and values, weighted by the scores. From then on a prototype is part of the memory and
competes.

Read a video in chunks, as ``foveate.Stream`` does: whenever the heads store ``every`` pairs more
than the budget, the cache is compressed. It needs ``compress(..., tokenizer=...)``.

The source is the paper's equations 1 to 3; no code has been released. Choices made here: there is
one ranking for a layer, the mean over its query heads; a prototype takes the slot of its frame's
least attended token and counts in the budget; where the budget does not hold the prototypes of all
new frames, the newest frames get one.

Differences: frames that repeat the one before are not merged before the model reads them (section
3, a cosine above 0.95), which is up to the caller; and positions, which the paper stretches by
YaRN, are not changed: give the model such a configuration, or use
``foveate.Stream(positions="reindexed")``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive
from foveate.policies.protocols import NoMerge, Rereading
from foveate.stages import OverBudget, TextPrior, TopK, Uniform, highest
from foveate.stages.score.attention_rows import blocks
from foveate.stages.score.bases import WithoutQueries

_PAID, _TIMES = "paid", "times"  # a slot's attention in the last probe pass; its number of passes


@stage("chat_attention")
class ChatAttention(WithoutQueries):
    """Attention of a text read after the cache to each visual token.

    The softmax is over visual tokens alone, averaged over the text's tokens and all query heads.
    Text tokens score 0. The part "saliency" equals the values; "fresh" is 1 at slots in their first
    probe pass, else 0.

    ``words`` is the text; if empty, the text that the chat template puts after a user's message.

    Source: StreamMem (arXiv:2508.15717), eq. 1.
    """

    words: str = ""

    @property
    def reading(self) -> Rereading:
        """Probe pass over the text."""
        texts = (self.words,) if self.words else ()
        return Rereading(chunk=1, prompt=False, follow_ups=texts, bare=True, closing=not texts)

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Record the text's attention, and count the pass."""
        slots = layer.k.shape[2] - layer.q.shape[2]
        zeros = layer.k.new_zeros(*layer.k.shape[:2], slots, dtype=torch.float32)
        paid = reduce(
            add, (_of_visual(layer, block).sum((1, 2, 3)) for block in _query_blocks(layer))
        )
        mean = paid[:, None, :slots] / (layer.q.shape[1] * layer.q.shape[2])
        times = layer.state.get(_TIMES, zeros) + 1
        return {_PAID: mean.expand_as(zeros).contiguous(), _TIMES: times}

    def __call__(self, layer: Layer) -> Scores:
        paid, fresh = layer.state[_PAID], layer.state[_TIMES] == 1
        return Scores(paid, parts={"saliency": paid, "fresh": fresh.float()})


def _query_blocks(layer: Layer) -> Iterator[slice]:
    """Iterate over the layer's queries in blocks."""
    return blocks(layer.q.shape[2])


def _of_visual(layer: Layer, block: slice) -> Float[Tensor, "b h g r n"]:
    """Return the attention of some queries, with a softmax over visual tokens alone."""
    q = layer.q[:, :, block]
    seen = (layer.vision & layer.valid)[:, :, None].expand(-1, -1, q.shape[2], -1)
    return window_attention(q, layer.k, seen, layer.scale)


class _Frames(NamedTuple):
    """New frames of a layer: each fresh slot's frame number, and the slots that prototypes take."""

    number: Int[Tensor, "b h n"]
    fresh: Bool[Tensor, "b h n"]
    prototypes: Bool[Tensor, "b h n"]

    @classmethod
    def of(cls, scored: Scored, by: object) -> _Frames:
        """Find the frames by the parts of the score.

        Raises:
            InvalidParameter: a score without the parts "saliency" and "fresh".
        """
        layer, parts = scored.layer, scored.scores.parts
        if not {"saliency", "fresh"} <= parts.keys():
            raise InvalidParameter(
                f"{by!r} needs a score with parts 'saliency' and 'fresh'. Use "
                "score=chat_attention()."
            )
        fresh = (parts["fresh"] > 0) & layer.vision & layer.valid
        image = layer.slots.known_image
        first = image.masked_fill(~fresh, _FAR).amin(-1, keepdim=True)
        number = (image - first).masked_fill(~fresh, 0)
        least = _least(parts["saliency"], number, fresh)
        index = torch.arange(fresh.shape[-1], device=fresh.device).expand_as(number).float()
        return cls(number, fresh, fresh & least & _least(index, number, fresh & least))


_FAR = 2**62


def _least(
    values: Float[Tensor, "b h n"], number: Int[Tensor, "b h n"], fresh: Bool[Tensor, "b h n"]
) -> Bool[Tensor, "b h n"]:
    """Mark fresh slots whose value is the lowest of their frame, ties included."""
    fresh_values = values.masked_fill(~fresh, torch.inf)
    frames = values.new_full((*values.shape[:2], int(number.max()) + 1), torch.inf)
    frames.scatter_reduce_(2, number, fresh_values, "amin")
    return fresh & (fresh_values == frames.gather(2, number))


@stage("with_prototypes")
class WithPrototypes(TopK):
    """Selection of one slot of every new frame for its prototype, then of the highest scores.

    Tokens that ``top_k`` always keeps come first. Where the budget does not hold all prototypes,
    the newest frames get one.

    Source: StreamMem (arXiv:2508.15717), section 3.
    """

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        frames, values = _Frames.of(scored, self), scored.scores.values
        candidates = frames.prototypes & (values < torch.inf)
        left = (counts - (values == torch.inf).sum(-1)).clamp_min(0)
        newest = frames.number.float().masked_fill(~candidates, -torch.inf)
        taken = highest(newest, left.minimum(candidates.sum(-1)))
        return highest(values.masked_fill(taken, torch.inf), counts)


@stage("frame_prototypes")
class FramePrototypes:
    """Merge of a new frame into its prototype's slot, by the mean of its keys and of its values.

    Each pair is weighted by its share of the attention that the frame receives; in float32.

    Source: StreamMem (arXiv:2508.15717), eq. 2.
    """

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        layer, frames = scored.layer, _Frames.of(scored, self)
        paid = scored.scores.parts["saliency"].masked_fill(~frames.fresh, 0.0)
        sums = paid.new_zeros(*paid.shape[:2], int(frames.number.max()) + 1)
        sums.scatter_add_(2, frames.number, paid)
        share = paid / sums.gather(2, frames.number).clamp_min(torch.finfo(torch.float32).tiny)
        takes_prototype = kept & frames.prototypes

        def with_means(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
            where = frames.number[..., None].expand_as(x)
            means = x.new_zeros(*sums.shape, x.shape[3], dtype=torch.float32)
            weighted = (x.float() * share[..., None]).masked_fill(~frames.fresh[..., None], 0.0)
            means.scatter_add_(2, where, weighted)
            return torch.where(takes_prototype[..., None], means.gather(2, where).to(x.dtype), x)

        return with_means(layer.k), with_means(layer.v)


@method("yang2025streammem", adds=("score", "select", "merge", "when"))
def streammem(
    *, budget: Amount, proxy: str = "", prototypes: bool = True, every: Positive = 256
) -> Policy:
    """Text, tokens that the chat template attends to, and a prototype of each frame.

    Score: eq. 1; prototypes: eq. 2. The cache is compressed while a video is read.

    Args:
        proxy: Text that stands in for future questions; empty: that of the chat template.
        prototypes: Keep a weighted mean of each new frame's pairs.

    Defaults:
        paper; `every`: here
    """
    return Policy(
        score=TextPrior(of=ChatAttention(words=proxy)),
        budget=Uniform(amount=budget),
        select=WithPrototypes() if prototypes else TopK(),
        merge=FramePrototypes() if prototypes else NoMerge(),
        when=OverBudget(every=every, reading=True, answering=False),
    )
