"""HERMES: each layer remembers a video in its own way, and deep layers tell shallow ones what for.

Shallow layers look at the newest tokens, so they keep those (sensory memory); deep layers look at
what stands for whole frames, so they keep what is attended to (long-term memory); between them a
mixture goes over from the one to the other (working memory). What is attended to is asked with
pseudo questions that are read after the cache and do not stay: one about details in shallow layers,
one about the whole in deep ones, both together between (``proxy="questions"``, which needs
``compress(..., tokenizer=...)``). Then every layer's scores take over a part of the next one's,
from the deepest on, so that layers agree on what they remember.

Read a video in chunks, as ``foveate.Stream`` does: whenever the heads hold ``every`` pairs more
than the budget, what they hold is compressed.

Departs from the authors' code in: the pseudo questions' words; their queries, which are those of
the model, where the release multiplies embeddings by every layer's projections and lets all tokens
of a question see each other; no summary token, into which deep layers of the release average what
they drop, under keys that are turned to a place behind all others; and positions, which the release
closes up in each layer by itself, and ``foveate.Stream(positions="reindexed")`` in all together.
Ours: without pseudo questions the prompt's last queries stand for them (``proxy="window"``), as a
prompt that is read at once ends with its question; text comes before what is visual.
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
from foveate.stages.score.bases import WithoutQueries, Wrapper
from foveate.stages.score.rows import rows

LOCAL = "What do the newest frames show? Describe objects, actions and places in detail."
OVERALL = "Summarize the whole video: who and what is in it, what happens, and in which order."
KINDS = ("local", "overall", "both")
_COUNT = "asked"
EPS = 1e-6


@stage("pseudo_questions")
class PseudoQuestions(WithoutQueries):
    """What questions that nobody asked pay to each slot: the mean over their tokens and the query
    heads of a KV head, of a softmax over all slots and the question itself. The parts "local",
    "overall" and "both" are of a question about details, of one about the whole, and of the two in
    one text; the values are the last of them.

    Source: HERMES (arXiv:2601.14724) and the release, pseudo queries.
    """

    local: str = LOCAL
    overall: str = OVERALL

    @property
    def reading(self) -> Rereading:
        """The three texts."""
        both = f"{self.local}; {self.overall}"
        return Rereading(
            chunk=1, prompt=False, follow_ups=(self.local, self.overall, both), bare=True
        )

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """One more text has been read."""
        held = layer.k.shape[2] - layer.q.shape[2]
        none = layer.k.new_zeros(*layer.k.shape[:2], held, dtype=torch.float32)
        state = {name: layer.state.get(name, none) for name in (*KINDS, _COUNT)}
        place = int(state[_COUNT].amax()) % len(KINDS)
        queries = layer.q.shape[2] * layer.groups
        paid = reduce(add, (each[..., :held].sum((2, 3)) for _, each in rows(layer))) / queries
        return {**state, KINDS[place]: paid, _COUNT: torch.full_like(none, place + 1)}

    def __call__(self, layer: Layer) -> Scores:
        parts = {kind: layer.state[kind] for kind in KINDS}
        return Scores(parts["both"], parts=parts)


class Memory(NamedTuple):
    """How a layer remembers: ``recency`` is the share of its score that goes by age, which falls
    exponentially with ``decay``; ``takes`` that of the next layer's score; ``asks`` what is asked.
    """

    asks: str
    recency: float
    decay: float
    takes: float


@stage("memory_hierarchy")
class MemoryHierarchy(Wrapper):
    """Another score, averaged over the heads of a layer and scaled to [0, 1], beside how new a
    token is, scaled likewise; then, from the deepest layer on, each takes over a part of the next
    one's. Visual tokens are scaled among themselves; text, likewise, comes before them.

    The first ``shallow`` of the layers go by age alone, the last ``deep`` not at all.

    Source: HERMES (arXiv:2601.14724), hierarchical memory and cross-layer memory smoothing; numbers
    from the release.
    """

    shallow: Share = 0.1
    deep: Share = 0.3
    smoothing: bool = True

    def memory(self, layer: int, depth: int) -> Memory:
        """Of one layer of so many."""
        first, last = int(depth * self.shallow), int(depth * (1 - self.deep))
        if layer < first:
            return Memory("local", 1.0, 20.0, 0.1)
        if layer >= last:
            return Memory("overall", 0.0, 0.0, 0.4)
        progress = (layer - first) / (last - first)
        return Memory("both", 1.0 - 0.9 * progress, 20.0 - 19.5 * progress, 0.3)

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        how = self.memory(layer.ordinal, layer.depth)
        paid = inner.parts.get(how.asks, inner.values).float().mean(1, keepdim=True)
        paid = paid.expand_as(inner.values)
        visual = layer.vision & layer.valid
        text = ~layer.vision & layer.valid
        values = torch.where(text, 2.0 + _mixed(paid, text, how), _mixed(paid, visual, how))
        return Scores(values, parts=inner.parts, notes=inner.notes)

    def together(self, scored: Sequence[Scored]) -> list[Float[Tensor, "b h n"]]:
        """From the deepest layer on. Slots are those of the same place in order; where layers hold
        different numbers, what stands between.
        """
        values = [scored[-1].raw]
        for one in reversed(scored[:-1] if self.smoothing else ()):
            takes = self.memory(one.layer.ordinal, one.layer.depth).takes
            deeper = _of_length(values[0], one.raw)
            values.insert(0, (1 - takes) * one.raw + takes * deeper.to(one.raw.device))
        return values if self.smoothing else [one.raw for one in scored]


def _mixed(
    paid: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"], how: Memory
) -> Float[Tensor, "b h n"]:
    """What marked slots are paid and how new they are, each from 0 to 1, in one number."""
    place, count = marked.cumsum(-1).float() - 1, marked.sum(-1, keepdim=True).float()
    age = (count - 1 - place) / (count - 1).clamp_min(1)
    newness = torch.exp(-how.decay * age)
    scaled = (_scaled(one, marked) for one in (paid, newness))
    attention, recency = scaled
    return attention * (1 - how.recency) + recency * how.recency


def _scaled(x: Float[Tensor, "b h n"], marked: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """To [0, 1] over the marked slots; zero elsewhere."""
    least = x.masked_fill(~marked, torch.inf).amin(-1, keepdim=True)
    most = x.masked_fill(~marked, -torch.inf).amax(-1, keepdim=True)
    return torch.where(marked, (x - least) / (most - least + EPS), 0.0)


def _of_length(x: Float[Tensor, "b h s"], like: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """As many slots as the other has, and heads: their mean, where these differ."""
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
    """Keeps what is new in shallow layers, what is attended to in deep ones, and both between.

    Args:
        proxy: What stands for questions to come: the prompt's last queries, or pseudo questions.
        window: Last queries that stand for questions.
        shallow: Share of the layers that go by age alone, the first ones.
        deep: Share of the layers that go by attention alone, the last ones.
        smoothing: Whether every layer takes over a part of the next one's scores.

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
