"""StreamMem: a video is remembered by what a chat's own words attend to, and a prototype a frame.

What the chat template puts behind a user's words is read after the cache and does not stay; what
its tokens attend to stands for questions that nobody has asked yet (``proxy`` gives other words).
Visual tokens of the memory and of the newest frames compete for one budget, layer by layer (text
comes before them). Beside the highest scores stays a prototype of every new frame: the mean of its
keys and values, weighted by the scores. A prototype is memory from then on, and competes.

Read a video in chunks, as ``foveate.Stream`` does: whenever the heads hold ``every`` pairs more
than the budget, what they hold is compressed. It needs ``compress(..., tokenizer=...)``.

From the paper's equations 1 to 3; no code has been released. What they leave open is decided so:
one ranking for a layer, the mean over its query heads; a prototype stands at the place of its
frame's least attended token, counts in the budget, and where that does not hold those of all new
frames, the newest ones have theirs. Departs in: frames that repeat the one before are not merged
before the model reads them (section 3, a cosine above 0.95), which is for whoever takes the frames;
and positions, which the paper stretches by YaRN: give the model such a configuration, or
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
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.rows import blocks

_PAID, _TIMES = "paid", "times"  # what a slot was paid last, and how often it was looked at


@stage("chat_attention")
class ChatAttention(WithoutQueries):
    """What words that are read after the cache pay to each visual token: a softmax over visual
    tokens alone, its mean over the words' tokens and all query heads. Text has none (0). The part
    "saliency" is the same; "fresh" is 1 at slots that no such words have seen before, else 0.

    ``words`` are given, or, if empty, what the chat template puts behind a user's.

    Source: StreamMem (arXiv:2508.15717), eq. 1.
    """

    words: str = ""

    @property
    def reading(self) -> Rereading:
        """The words."""
        asks = (self.words,) if self.words else ()
        return Rereading(chunk=1, prompt=False, follow_ups=asks, bare=True, closing=not asks)

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """The words have been read."""
        held = layer.k.shape[2] - layer.q.shape[2]
        none = layer.k.new_zeros(*layer.k.shape[:2], held, dtype=torch.float32)
        paid = reduce(add, (_of_visual(layer, some).sum((1, 2, 3)) for some in _some(layer)))
        mean = paid[:, None, :held] / (layer.q.shape[1] * layer.q.shape[2])
        times = layer.state.get(_TIMES, none) + 1
        return {_PAID: mean.expand_as(none).contiguous(), _TIMES: times}

    def __call__(self, layer: Layer) -> Scores:
        paid, fresh = layer.state[_PAID], layer.state[_TIMES] == 1
        return Scores(paid, parts={"saliency": paid, "fresh": fresh.float()})


def _some(layer: Layer) -> Iterator[slice]:
    """Queries, some at a time."""
    return blocks(layer.q.shape[2])


def _of_visual(layer: Layer, some: slice) -> Float[Tensor, "b h g r n"]:
    """What these queries pay, if there were visual tokens alone."""
    q = layer.q[:, :, some]
    seen = (layer.vision & layer.valid)[:, :, None].expand(-1, -1, q.shape[2], -1)
    return window_attention(q, layer.k, seen, layer.scale)


class _Frames(NamedTuple):
    """Of a layer's new frames: the ``number`` of each slot's, from 0, where ``fresh``; and the
    slots that their prototypes take.
    """

    number: Int[Tensor, "b h n"]
    fresh: Bool[Tensor, "b h n"]
    places: Bool[Tensor, "b h n"]

    @classmethod
    def of(cls, scored: Scored, by: object) -> _Frames:
        """From what a score tells; raises InvalidParameter if that is another's."""
        layer, parts = scored.layer, scored.scores.parts
        if not {"saliency", "fresh"} <= parts.keys():
            raise InvalidParameter(
                f"{by!r} goes by what each visual token is paid, and which are new, and this score "
                "does not tell. Use it with score=chat_attention()."
            )
        fresh = (parts["fresh"] > 0) & layer.vision & layer.valid
        image = layer.slots.known_image
        first = image.masked_fill(~fresh, _FAR).amin(-1, keepdim=True)
        number = (image - first).masked_fill(~fresh, 0)
        least = _least(parts["saliency"], number, fresh)
        place = torch.arange(fresh.shape[-1], device=fresh.device).expand_as(number).float()
        return cls(number, fresh, fresh & least & _least(place, number, fresh & least))


_FAR = 2**62


def _least(
    values: Float[Tensor, "b h n"], number: Int[Tensor, "b h n"], fresh: Bool[Tensor, "b h n"]
) -> Bool[Tensor, "b h n"]:
    """True at fresh slots than which none of the same frame has less."""
    shown = values.masked_fill(~fresh, torch.inf)
    frames = values.new_full((*values.shape[:2], int(number.max()) + 1), torch.inf)
    frames.scatter_reduce_(2, number, shown, "amin")
    return fresh & (shown == frames.gather(2, number))


@stage("with_prototypes")
class WithPrototypes(TopK):
    """Beside what ``top_k`` always keeps: one slot of every new frame, of the newest ones first,
    for its prototype; and the highest scores of the rest.

    Source: StreamMem (arXiv:2508.15717), section 3.
    """

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        frames, values = _Frames.of(scored, self), scored.scores.values
        places = frames.places & (values < torch.inf)
        left = (counts - (values == torch.inf).sum(-1)).clamp_min(0)
        newest = frames.number.float().masked_fill(~places, -torch.inf)
        taken = highest(newest, left.minimum(places.sum(-1)))
        return highest(values.masked_fill(taken, torch.inf), counts)


@stage("frame_prototypes")
class FramePrototypes:
    """In the slot of a new frame that its prototype takes: the mean of all keys, and of all values,
    of the frame, each weighted by its share of what the frame is paid; in float32.

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
        here = kept & frames.places

        def with_means(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
            where = frames.number[..., None].expand_as(x)
            means = x.new_zeros(*sums.shape, x.shape[3], dtype=torch.float32)
            weighted = (x.float() * share[..., None]).masked_fill(~frames.fresh[..., None], 0.0)
            means.scatter_add_(2, where, weighted)
            return torch.where(here[..., None], means.gather(2, where).to(x.dtype), x)

        return with_means(layer.k), with_means(layer.v)


@method("yang2025streammem", adds=("score", "select", "merge", "when"))
def streammem(
    *, budget: Amount, proxy: str = "", prototypes: bool = True, every: Positive = 256
) -> Policy:
    """Keeps text, what a chat's own words attend to, and a prototype of each frame, as it reads.

    Args:
        proxy: Words that stand for questions to come; empty: those of the chat template.
        prototypes: Whether each new frame leaves a weighted mean of its pairs.

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
