"""All that a stage may see of one attention layer.

Axis letters, used in every signature of the package:

    b  rows of the batch          h  KV heads            g  query heads per KV head (hq = h * g)
    n  slots: stored KV pairs     m  queries at hand     w  queries of the observation window
    d  head size of q and k       e  head size of v                 c  size of the hidden states
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.slots import Slots
from foveate.errors import InvalidInput


class WindowWeights(NamedTuple):
    """How often each of the last ``w`` queries counts in each of ``c`` sums, over the query heads
    of a KV head; and the n of the softmax-n that they are sums of.
    """

    counts: Float[Tensor, "b c g w"]
    n: float = 0.0


class WindowSums(NamedTuple):
    """What the last queries pay to every slot with these weights, where the attention has added it
    up on its way.
    """

    weights: WindowWeights
    sums: Float[Tensor, "b h c n"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's queries, keys and values, all post-RoPE, and its slots.

    The queries are the last ``m`` of the prompt. ``ordinal`` counts the compressed layers from 0,
    ``model_index`` all of the model's, where the backend knows it.
    """

    q: Float[Tensor, "b hq m d"]
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    slots: Slots
    scale: float
    ordinal: int = 0
    model_index: int | None = None
    depth: int = 1  # number of compressed layers
    state: Mapping[str, Tensor] = field(default_factory=dict)  # running statistics, [b h n] each
    earlier: tuple[Mapping[str, Tensor], ...] = ()  # notes of the layers before this one
    output_weight: Float[Tensor, "hq e c"] | None = None  # W_o, where the score asks for it
    # likewise the norms of what the layer adds to, at its queries, before the layer's own norm
    residual_norm: Float[Tensor, "b m"] | None = None
    # by-products of the attention, where it has made them on its way
    column_sums: Float[Tensor, "b hq n"] | None = None  # sums over queries of the softmax
    window_sums: WindowSums | None = None
    column_maxima: Float[Tensor, "b h n"] | None = None  # over a KV head's queries

    @property
    def number(self) -> int:
        """What messages call the layer: its index in the model, as a model may have layers that
        are not compressed; its place among the layers at hand where there is no model.
        """
        return self.ordinal if self.model_index is None else self.model_index

    @cached_property
    def groups(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[1]

    # What scores ask most of the slots

    @property
    def pos(self) -> Int[Tensor, "b h n"]:
        """Index of each slot's token in its row; negative: padding."""
        return self.slots.pos

    @property
    def q_pos(self) -> Int[Tensor, "b m"]:
        """Index of each query's token in its row."""
        return self.slots.q_pos

    @property
    def valid(self) -> Bool[Tensor, "b h n"]:
        """True where a slot holds a real token."""
        return self.slots.valid

    @property
    def vision(self) -> Bool[Tensor, "b h n"]:
        """True at visual tokens; raises MissingModality if nothing told."""
        return self.slots.vision

    @property
    def q_vision(self) -> Bool[Tensor, "b m"]:
        """True at queries of visual tokens; raises MissingModality if nothing told."""
        return self.slots.q_vision

    @property
    def lengths(self) -> Int[Tensor, "b"]:
        """Tokens that each row has seen, padding excluded."""
        return self.slots.lengths

    def after_scoring(self, copied: bool) -> Layer:
        """The layer as the stages after its score see it: the last query alone is left.

        A budget over all layers waits for the last one; it wants it ``copied``, or would hold
        everybody's queries, which take more memory than the keys and values.
        """
        last = self.q[:, :, -1:]
        return replace(
            self,
            q=last.clone() if copied else last,
            slots=self.slots.last_query_copied if copied else self.slots.last_query,
            output_weight=None,
            residual_norm=None,
            column_sums=None,
            window_sums=None,
        )


class Scores(NamedTuple):
    """What a score says of one layer.

    ``values`` rank the slots, high is important. ``parts`` are named components of them, for a
    selection that draws on several lists; a part "importance" tells how much each slot matters
    where ``values`` rank by something else as well. ``notes`` are facts about the layer ([b ...])
    that the selection of this layer, and the stages of later ones (in ``Layer.earlier``), may read.
    """

    values: Float[Tensor, "b h n"]
    parts: Mapping[str, Tensor] = {}
    notes: Mapping[str, Tensor] = {}


@dataclass(frozen=True, eq=False)
class Scored:
    """A layer with its scores: what budgets and selections work on.

    In ``scores.values`` a protected slot is +inf and an empty or padded one is -inf, so ranking
    alone keeps the one and never the other. ``raw`` are the values before that was marked, and
    ``tokens`` is each row's budget per KV head.
    """

    layer: Layer
    scores: Scores
    raw: Float[Tensor, "b h n"]
    tokens: Int[Tensor, "b"]
    always: Int[Tensor, "b h"] | None = None  # ``protected``, if they have been counted
    held: bool = False  # its pairs are those that are held: ``k`` and ``v`` tell sizes alone

    @property
    def importance(self) -> Float[Tensor, "b h n"]:
        """How much each slot matters, protected or not; zero at padding."""
        values: Tensor = self.scores.parts.get("importance", self.raw)
        return values.float().masked_fill(~self.layer.valid, 0.0)

    @property
    def available(self) -> Int[Tensor, "b h"]:
        """Slots that can be kept."""
        return self.layer.slots.available

    @cached_property
    def slots_held(self) -> int:
        """How many slots all rows and heads can keep. The device is asked once."""
        return int(self.available.sum())

    @cached_property
    def protected(self) -> Int[Tensor, "b h"]:
        """Slots that are kept whatever their score."""
        return (self.scores.values == float("inf")).sum(-1) if self.always is None else self.always


def not_finite(layer: Layer, queries: int) -> Float[Tensor, ""]:
    """NaN where a key, value or query may be no number (also at padding, where that does not
    matter), otherwise zero; nothing is asked of the device. Of the queries the last so many count.
    """
    sums = layer.k.new_zeros((), dtype=torch.float32)
    for t in (layer.k, layer.v, layer.q[:, :, -queries:])[: 3 if queries else 2]:
        least, most = t.detach().aminmax()
        sums = sums + (most.float() - least.float()) * 0.0  # of what is no number, no number
    return sums


def check_finite(layer: Layer, queries: int, user: object) -> None:
    """Raises InvalidInput where any key, value or query is no number, which models make where
    activations overflow, as a rule in float16: nothing that attends to what is kept of such a layer
    would be a number either. ``user`` says what wanted them.
    """
    if bool(not_finite(layer, queries).isnan()):
        refuse_not_finite(layer, queries, user)


def refuse_not_finite(layer: Layer, queries: int, user: object) -> None:
    """The same, with the layer and how many, of real tokens alone."""
    for name, t, real in _parts(layer, queries):
        broken = ~t.isfinite().all(-1) & real
        if count := int(broken.flatten(0, -2).any(0).sum()):
            kind = str(t.dtype).removeprefix("torch.")
            raise InvalidInput(
                f"the {name} of layer {layer.number} hold NaN or infinity at {count} of "
                f"{t.shape[2]} tokens, which {user} cannot work on. Where a model overflows in "
                f"its type (here {kind}), load it in bfloat16 or float32."
            )


def _parts(
    layer: Layer, queries: int
) -> Iterator[tuple[str, Float[Tensor, "b _h m _d"], Bool[Tensor, "b #_h m"]]]:
    yield "keys", layer.k, layer.valid
    yield "values", layer.v, layer.valid
    if queries:
        yield "queries", layer.q[:, :, -queries:], (layer.q_pos[:, -queries:] >= 0)[:, None]
