"""The tensors of one attention layer that stages work on, and their scores.

Axis letters, used in every signature of the package:

    b  rows of the batch          h  KV heads            g  query heads per KV head (hq = h * g)
    n  slots: stored KV pairs     m  queries at hand     w  queries of the observation window
    d  head size of q and k       e  head size of v                 c  size of the hidden states
    t  tokens whose hidden states are at hand
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
    """Weights of the last ``w`` queries in ``c`` weighted sums of attention.

    ``counts`` are per query head of a KV head; the attention is a softmax-n with this ``n``.
    """

    counts: Float[Tensor, "b c g w"]
    n: float = 0.0


class WindowSums(NamedTuple):
    """Attention that the last queries pay to every slot, summed with these weights.

    The attention computes the sums as a by-product.
    """

    weights: WindowWeights
    sums: Float[Tensor, "b h c n"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's queries, keys and values, all post-RoPE, and its slots.

    The queries are the last ``m`` of the prompt. ``ordinal`` counts the compressed layers from 0,
    ``model_index`` all of the model's; it is None where no backend knows it.

    Under latent attention (MLA), ``k`` are latents and ``v`` rotary keys, of one head that all
    query heads share. Scores read ``per_head``, with the ``expanded`` keys and values instead.
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
    output_weight: Float[Tensor, "hq e c"] | None = None  # W_o, if the score needs it
    # norms of the residual stream at the queries, before the layer's own norm; if needed, too
    residual_norm: Float[Tensor, "b m"] | None = None
    # what the layer's attention module reads at the queries, or after a re-prefill at all tokens of
    # the prompt; if needed, too
    hidden: Float[Tensor, "b t c"] | None = None
    # by-products of the attention, if it computed them
    column_sums: Float[Tensor, "b hq n"] | None = None  # sums over queries of the softmax
    window_sums: WindowSums | None = None
    column_maxima: Float[Tensor, "b h n"] | None = None  # over a KV head's queries
    expanded: tuple[Float[Tensor, "b hq n d"], Float[Tensor, "b hq n e"]] | None = None

    @cached_property
    def per_head(self) -> Layer:
        """The layer with expanded keys and values, if the cache stores latents; else itself."""
        if self.expanded is None:
            return self
        heads = self.expanded[0].shape[1]
        return replace(
            self,
            k=self.expanded[0],
            v=self.expanded[1],
            expanded=None,
            slots=self.slots.for_heads(heads),
            state={name: t.expand(-1, heads, -1) for name, t in self.state.items()},
        )

    def with_latents(self, k: Float[Tensor, "b 1 n r"], v: Float[Tensor, "b 1 n p"]) -> Layer:
        """Return this layer, whose keys and values are per head, as one that stores latents."""
        return replace(self, k=k, v=v, expanded=(self.k, self.v), slots=self.slots.for_heads(1))

    def folded(self, values: Float[Tensor, "b _h n"]) -> Float[Tensor, "b h n"]:
        """Return values of ``per_head`` as those of the stored heads: the mean over heads, if the
        cache stores latents.
        """
        return values if self.expanded is None else values.mean(1, keepdim=True)

    @property
    def number(self) -> int:
        """The layer's number in messages: its index in the model, or its ordinal without a model.

        The two differ where a model has layers that are not compressed.
        """
        return self.ordinal if self.model_index is None else self.model_index

    @cached_property
    def groups(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[1]

    # Shortcuts to the slots

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
        """True where a slot contains a real token."""
        return self.slots.valid

    @property
    def vision(self) -> Bool[Tensor, "b h n"]:
        """True at visual tokens; raises MissingModality if these are unknown."""
        return self.slots.vision

    @property
    def q_vision(self) -> Bool[Tensor, "b m"]:
        """True at queries of visual tokens; raises MissingModality if these are unknown."""
        return self.slots.q_vision

    @property
    def lengths(self) -> Int[Tensor, "b"]:
        """Tokens that each row has seen, padding excluded."""
        return self.slots.lengths

    def after_scoring(self, copied: bool) -> Layer:
        """Return the layer for the stages after its score, with the last query alone.

        A budget over all layers waits for the last layer. It needs the query ``copied``: a view
        would keep every layer's queries alive, which take more memory than the keys and values.
        """
        last = self.q[:, :, -1:]
        return replace(
            self,
            q=last.clone() if copied else last,
            slots=self.slots.last_query_copied if copied else self.slots.last_query,
            output_weight=None,
            residual_norm=None,
            hidden=None,
            column_sums=None,
            window_sums=None,
            expanded=None,
        )


class Scores(NamedTuple):
    """Result of a score for one layer.

    ``values`` rank the slots; higher is more important. ``parts`` are named components of them, for
    a selection that draws on several lists. The part "importance" is each slot's importance where
    ``values`` rank by something else as well. ``notes`` are facts about the layer ([b ...]) for the
    selection of this layer and the stages of later ones (in ``Layer.earlier``).
    """

    values: Float[Tensor, "b h n"]
    parts: Mapping[str, Tensor] = {}
    notes: Mapping[str, Tensor] = {}


@dataclass(frozen=True, eq=False)
class Scored:
    """A layer with its scores: the input of budgets and selections.

    In ``scores.values`` a protected slot is +inf and an empty or padded one is -inf, so ranking
    alone keeps the first and never the second. ``raw`` are the values before this marking, and
    ``tokens`` is each row's budget per KV head.
    """

    layer: Layer
    scores: Scores
    raw: Float[Tensor, "b h n"]
    tokens: Int[Tensor, "b"]
    always: Int[Tensor, "b h"] | None = None  # ``protected``, if already counted
    is_stored: bool = False  # already the cache's pairs: ``k`` and ``v`` only have their shapes

    @property
    def importance(self) -> Float[Tensor, "b h n"]:
        """Importance of each slot, protected or not; zero at padding."""
        values: Tensor = self.scores.parts.get("importance", self.raw)
        return values.float().masked_fill(~self.layer.valid, 0.0)

    @property
    def available(self) -> Int[Tensor, "b h"]:
        """Slots that can be kept."""
        return self.layer.slots.available

    @cached_property
    def slots_held(self) -> int:
        """Number of real slots in all rows and heads. Cached, because it needs a device sync."""
        return int(self.available.sum())

    @cached_property
    def protected(self) -> Int[Tensor, "b h"]:
        """Slots that are kept whatever their score."""
        return (self.scores.values == float("inf")).sum(-1) if self.always is None else self.always


def not_finite(layer: Layer, queries: int) -> Float[Tensor, ""]:
    """Return NaN if a key, a value or one of the last ``queries`` queries is not finite, else zero.

    Needs no device sync. NaN may also come from padding, where it does not matter.
    """
    sums = layer.k.new_zeros((), dtype=torch.float32)
    for t in (layer.k, layer.v, layer.q[:, :, -queries:])[: 3 if queries else 2]:
        least, greatest = t.detach().aminmax()
        sums = sums + (greatest.float() - least.float()) * 0.0  # inf * 0 and NaN * 0 are NaN
    return sums


def check_finite(layer: Layer, queries: int, user: object) -> None:
    """Raise InvalidInput if a key, a value or one of the last ``queries`` queries is not finite.

    Models produce such numbers where activations overflow, usually in float16. Attention to the
    kept pairs of such a layer would be NaN too. ``user`` names the stage that needs the numbers.
    """
    if bool(not_finite(layer, queries).isnan()):
        refuse_not_finite(layer, queries, user)


def refuse_not_finite(layer: Layer, queries: int, user: object) -> None:
    """Raise InvalidInput with the layer and the number of real tokens that are not finite."""
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
