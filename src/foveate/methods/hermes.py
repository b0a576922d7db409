"""HERMES: hierarchical memory of a video, by age in shallow layers and by attention in deep ones.

Shallow layers attend to the newest tokens, so they keep those (sensory memory). Deep layers attend
to tokens that represent whole frames, so they keep the most attended tokens (long-term memory).
Layers in between mix both (working memory). With ``proxy="questions"``, which needs ``compress(...,
tokenizer=...)``, attention is measured with pseudo questions that are read after the cache and then
discarded: one about details for shallow layers, one about the whole video for deep ones, both
together for the layers between. Finally, from the deepest layer on, every layer's scores take over
a part of the next layer's, so that layers agree on what they keep.

Read a video in chunks, as ``foveate.Stream`` does: whenever the heads store ``every`` pairs more
than the budget, the cache is compressed.

Differences from the authors' code:

* The wording of the pseudo questions.
* Their queries are the model's own, where the release multiplies embeddings by every layer's
  projections and lets all tokens of a question see each other.
* No summary token, into which deep layers of the release average the pairs they drop, under keys
  rotated to a position behind all others.
* Positions are reindexed for all layers together, by ``foveate.Stream(positions="reindexed")``,
  where the release reindexes each layer by itself.

Ours: without pseudo questions the prompt's last queries replace them (``proxy="window"``), as a
prompt that is read at once ends with its question; and text comes before visual tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Share, Window
from foveate.policies.protocols import Rereading
from foveate.stages import OverBudget, TopK, Uniform, WindowAttention
from foveate.stages.score.attention_rows import rows
from foveate.stages.score.bases import WithoutQueries, Wrapper

LOCAL = "What do the newest frames show? Describe objects, actions and places in detail."
OVERALL = "Summarize the whole video: who and what is in it, what happens, and in which order."
KINDS = ("local", "overall", "both")
_COUNT = "asked"
EPS = 1e-6


@stage("pseudo_questions")
class PseudoQuestions(WithoutQueries):
    """Mean attention of pseudo questions to each slot.

    The softmax is over all slots and the question itself; the mean is over the question's tokens
    and the query heads of a KV head. The parts "local", "overall" and "both" are the attention of a
    question about details, of one about the whole video, and of both in one text; the values are
    those of "both".

    Source: HERMES (arXiv:2601.14724) and the release, pseudo queries.
    """

    local: str = LOCAL
    overall: str = OVERALL

    @property
    def reading(self) -> Rereading:
        """Probe pass over the three texts."""
        both = f"{self.local}; {self.overall}"
        return Rereading(
            chunk=1, prompt=False, follow_ups=(self.local, self.overall, both), bare=True
        )

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Record the attention of the next text."""
        slots = layer.k.shape[2] - layer.q.shape[2]
        zeros = layer.k.new_zeros(*layer.k.shape[:2], slots, dtype=torch.float32)
        state = {name: layer.state.get(name, zeros) for name in (*KINDS, _COUNT)}
        kind = int(state[_COUNT].amax()) % len(KINDS)  # texts come in the order of KINDS
        queries = layer.q.shape[2] * layer.groups
        paid = (
            reduce(add, (attention[..., :slots].sum((2, 3)) for _, attention in rows(layer)))
            / queries
        )
        return {**state, KINDS[kind]: paid, _COUNT: torch.full_like(zeros, kind + 1)}

    def __call__(self, layer: Layer) -> Scores:
        parts = {kind: layer.state[kind] for kind in KINDS}
        return Scores(parts["both"], parts=parts)


class Memory(NamedTuple):
    """Weights of a layer's memory.

    ``question`` names the pseudo question, ``recency`` is the weight of age, which falls
    exponentially with ``decay``, and ``takes`` the share of the next layer's score that is taken
    over.
    """

    question: str
    recency: float
    decay: float
    takes: float


@stage("memory_hierarchy")
class MemoryHierarchy(Wrapper):
    """Another score, mixed with recency layer by layer and smoothed from the deepest layer on.

    The wrapped score is averaged over the heads of a layer and scaled to [0, 1], as is recency.
    Visual tokens are scaled among themselves; text is, too, and comes before them. The first
    ``shallow`` share of the layers uses recency alone, the last ``deep`` share no recency. With
    ``smoothing`` every layer then takes over a part of the next one's scores.

    Source: HERMES (arXiv:2601.14724), hierarchical memory and cross-layer memory smoothing; numbers
    from the release.
    """

    shallow: Share = 0.1
    deep: Share = 0.3
    smoothing: bool = True

    def memory(self, layer: int, depth: int) -> Memory:
        """Return the weights of layer ``layer`` in a model of ``depth`` layers."""
        first, last = int(depth * self.shallow), int(depth * (1 - self.deep))
        if layer < first:
            return Memory("local", 1.0, 20.0, 0.1)
        if layer >= last:
            return Memory("overall", 0.0, 0.0, 0.4)
        progress = (layer - first) / (last - first)
        return Memory("both", 1.0 - 0.9 * progress, 20.0 - 19.5 * progress, 0.3)

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        memory = self.memory(layer.ordinal, layer.depth)
        paid = inner.parts.get(memory.question, inner.values).float().mean(1, keepdim=True)
        paid = paid.expand_as(inner.values)
        visual = layer.vision & layer.valid
        text = ~layer.vision & layer.valid
        values = torch.where(text, 2.0 + _mixed(paid, text, memory), _mixed(paid, visual, memory))
        return Scores(values, parts=inner.parts, notes=inner.notes)

    def together(self, scored: Sequence[Scored]) -> list[Float[Tensor, "b h n"]]:
        """Smooth the scores of all layers, from the deepest one on.

        Slots correspond by their order; layers with other numbers of slots are interpolated.
        """
        values = [scored[-1].raw]
        for scored_layer in reversed(scored[:-1] if self.smoothing else ()):
            takes = self.memory(scored_layer.layer.ordinal, scored_layer.layer.depth).takes
            deeper = _of_length(values[0], scored_layer.raw)
            values.insert(
                0, (1 - takes) * scored_layer.raw + takes * deeper.to(scored_layer.raw.device)
            )
        return values if self.smoothing else [scored_layer.raw for scored_layer in scored]


def _mixed(
    paid: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"], memory: Memory
) -> Float[Tensor, "b h n"]:
    """Mix attention and recency of the marked slots, both scaled to [0, 1]."""
    rank, count = marked.cumsum(-1).float() - 1, marked.sum(-1, keepdim=True).float()
    age = (count - 1 - rank) / (count - 1).clamp_min(1)
    newness = torch.exp(-memory.decay * age)
    scaled = (_scaled(x, marked) for x in (paid, newness))
    attention, recency = scaled
    return attention * (1 - memory.recency) + recency * memory.recency


def _scaled(x: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """Scale the marked slots to [0, 1]; zero elsewhere."""
    least = x.masked_fill(~marked, torch.inf).amin(-1, keepdim=True)
    greatest = x.masked_fill(~marked, -torch.inf).amax(-1, keepdim=True)
    return torch.where(marked, (x - least) / (greatest - least + EPS), 0.0)


def _of_length(x: Float[Tensor, "b h s"], like: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """Resample scores to the number of slots of ``like``; average heads if their number differs."""
    if x.shape[1] != like.shape[1]:
        x = x.mean(1, keepdim=True).expand(-1, like.shape[1], -1)
    if x.shape[2] == like.shape[2]:
        return x
    return F.interpolate(x, size=like.shape[2], mode="linear", align_corners=False)


@method("zhang2026hermes", adds=("score", "when"))
def hermes(
    *,
    budget: Amount,
    proxy: Literal["window", "questions"] = "window",
    window: Window = 32,
    shallow: Share = 0.1,
    deep: Share = 0.3,
    smoothing: bool = True,
    every: Positive = 256,
) -> Policy:
    """Recent tokens in shallow layers, attended tokens in deep ones, a mixture in between.

    Args:
        proxy: Stand-in for future questions: the prompt's last queries, or pseudo questions.
        window: Last queries that stand in for future questions.
        shallow: Share of the layers, from the first on, that rank by age alone.
        deep: Share of the layers, up to the last, that rank by attention alone.
        smoothing: Let every layer take over a part of the next layer's scores.

    Defaults:
        release; `proxy`, `window` and `every`: here
    """
    window_score = WindowAttention(window=window, pool="none")
    return Policy(
        score=MemoryHierarchy(
            of=PseudoQuestions() if proxy == "questions" else window_score,
            shallow=shallow,
            deep=deep,
            smoothing=smoothing,
        ),
        budget=Uniform(amount=budget),
        select=TopK(),
        when=OverBudget(every=every, reading=True, answering=False),
    )
