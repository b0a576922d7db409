"""What each stage of a policy has to do: Protocols of pure functions of tensors.

What a stage may also say of itself is in ``policies/traits.py``. The identity stages live here too
(:class:`NoMerge`, :class:`AfterPrefill`, :class:`Softmax`, :class:`FullPrecision`); all others are
in ``foveate.stages`` and in the papers' files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores, WindowWeights
from foveate.cache.pairs import Form, Pairs, exact_bytes
from foveate.cache.slots import Slots
from foveate.policies.amount import AmountLike
from foveate.policies.spec import stage

Scope = Literal["layer", "model"]


@runtime_checkable
class Score(Protocol):
    """How important each slot is. One that wraps another holds it in a field named ``of``.

    ``queries`` tells how many of the prompt's last queries it reads (0: none), given the budget in
    tokens (of the row with the largest one).
    """

    def queries(self, tokens: int) -> int: ...

    def __call__(self, layer: Layer) -> Scores: ...


@runtime_checkable
class RunningScore(Score, Protocol):
    """A score that adds something up over all queries, whichever way they arrive.

    ``observe`` is called once per forward pass with that pass's queries, and returns the new
    ``layer.state``: tensors [b h n], one number a slot, which travel with the slots.
    """

    def observe(self, layer: Layer) -> Mapping[str, Tensor]: ...


@runtime_checkable
class ReadsWindowSums(Protocol):
    """A score that reads ``layer.window_sums``: a backend whose attention can add up on its way
    what the last queries pay does so, with the weights that this declares of the prompt's slots.
    """

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights: ...


class Rereading(NamedTuple):
    """What is read after a prompt, while a score looks on.

    ``prompt``: the prompt itself, at most ``chunk`` tokens at a time, each image by itself if
    ``by_image``. ``asks``: texts that the model is asked there; each is read with the model's own
    greedy answer, of at most ``longest`` tokens; if ``bare``, as it is and without an answer.
    ``closing``: what the model's chat template puts behind a user's words, as it is.
    ``questions`` are the same as token ids, which follow the prompt's first ``after`` tokens in
    place of its others, for a score that :class:`ReadsGradients`.
    """

    chunk: int
    prompt: bool = True
    by_image: bool = False
    asks: tuple[str, ...] = ()
    longest: int = 1
    bare: bool = False
    questions: tuple[tuple[int, ...], ...] = ()
    after: int = 0
    closing: bool = False


@runtime_checkable
class ReadsAgain(Protocol):
    """A score that looks on while more is read after a prompt's own cache, such as the prompt once
    more: a backend that has the model feeds what ``reading`` says, and then lets it go.

    ``again`` is called once for each such pass. The layer's queries are those of the pass, its last
    slots their own, and what it returns is added to ``layer.state`` as of a :class:`RunningScore`:
    tensors of the slots before those, [b h n]. A token of the prompt stands at its own position and
    the prompt's length more; what was asked and answered stands after all of these. The score
    itself comes after all passes.
    """

    @property
    def reading(self) -> Rereading: ...

    def again(self, layer: Layer) -> Mapping[str, Tensor]: ...


@runtime_checkable
class AcrossLayers(Score, Protocol):
    """A score that goes by those of other layers, too: once all layers have been scored,
    ``together`` gives them their last values, layer after layer. Its policy has scope "model".
    """

    def together(self, scored: Sequence[Scored]) -> list[Float[Tensor, "b h n"]]: ...


@runtime_checkable
class ReadsGradients(ReadsAgain, Protocol):
    """One that also looks on at the ``questions`` of its ``reading``, with the gradient of how sure
    the model is of its own answer by each head's output, [b, m, hq, e]. What ``answered`` returns
    is of all slots of the prompt, [b, h, n], those after the first ``after`` included.
    """

    def answered(
        self, layer: Layer, gradient: Float[Tensor, "b m hq e"]
    ) -> Mapping[str, Tensor]: ...


@runtime_checkable
class Budget(Protocol):
    """How many slots each KV head keeps.

    With scope "layer" it is called with one layer at a time, as soon as that layer's prefill is
    done; with scope "model" once, with all layers, so the full cache is held until then.
    ``tokens`` is the average per KV head and layer, per row. The counts of a row add up to
    ``tokens`` times the heads it was given (less only where fewer slots exist), and lie between
    what is protected and what is available.
    """

    @property
    def amount(self) -> AmountLike: ...

    @property
    def scope(self) -> Scope: ...

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> Sequence[Int[Tensor, "b h"]]: ...


@runtime_checkable
class EachByItself(Protocol):
    """A budget whose KV heads each keep what holds a share of their own importance, and that has no
    total: it takes an auto amount alone.
    """

    def holding(self, one: Scored, share: float) -> Int[Tensor, "b h"]: ...


@runtime_checkable
class KnownAtMost(Protocol):
    """A budget with scope "model" that tells, once some of the layers have been scored, how many of
    their best pairs it gives each of their heads at most, whatever the layers to come hold.
    ``heads`` are the KV heads of all layers, or more.
    """

    def at_most(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int
    ) -> Sequence[Int[Tensor, "b h"]]: ...


@runtime_checkable
class Planned(Protocol):
    """A budget with scope "layer" whose layers keep different totals, which are known beforehand.

    ``pairs`` is how many pairs of each row a layer keeps over all its KV heads. Over all layers of
    a prompt they add up to the budget.
    """

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]: ...


LayerCounts = Callable[[int, int, int], tuple[int, ...]]
"""Tokens that each KV head keeps, of every layer (or of every KV head, layer after layer), given
their average, how many of them are protected, and the prompt's length. Hashable, and can be
pickled.
"""


@runtime_checkable
class Foreseeable(Protocol):
    """A budget whose layers may keep different numbers, all heads of a layer the same, and whose
    numbers follow from lengths alone: they are known before anything is computed.

    ``foreseeable`` is False while something is missing for that. ``by_length`` gives the rule for
    ``depth`` compressed layers, in exact integers.
    """

    @property
    def foreseeable(self) -> bool: ...

    def by_length(self, depth: int) -> LayerCounts: ...


@runtime_checkable
class ForeseeableByHead(Protocol):
    """The same of a budget whose KV heads may keep different numbers: ``by_head`` gives the rule
    for the ``heads`` of each of ``depth`` layers, layer after layer.
    """

    def by_head(self, depth: int, heads: int) -> LayerCounts: ...


@runtime_checkable
class Select(Protocol):
    """Which slots are kept, given scores and counts.

    ``protects`` is the smallest budget that holds what ``protect`` marks by position alone (sinks,
    recent tokens) in a long prompt: a smaller one is raised to it.
    """

    @property
    def protects(self) -> int: ...

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]: ...

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]: ...


@runtime_checkable
class Merge(Protocol):
    """What the kept pairs take over from the others.

    Returns all slots' keys and values; those of the kept slots are stored.
    """

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]: ...


class Moment(NamedTuple):
    """When a rule is asked: after a forward pass of one layer.

    ``prompt`` is True when that pass completed the prompt. ``stored`` counts the pairs that each KV
    head holds now, ``seen`` the tokens that each row has read, ``length`` those of the prompt that
    was completed last. ``kept`` counts the pairs that each head kept when the layer was compressed
    last; if it never was, it is the row's budget.
    """

    prompt: bool
    stored: Int[Tensor, "b h"]
    seen: Int[Tensor, "b"]
    length: Int[Tensor, "b"]
    kept: Int[Tensor, "b h"]


@runtime_checkable
class When(Protocol):
    """When a layer is compressed. ``decodes`` is False if the answer stays every time "no" during
    decoding, which then costs nothing; ``reads`` likewise between the passes of a prompt that
    arrives in several.
    """

    @property
    def decodes(self) -> bool: ...

    @property
    def reads(self) -> bool: ...

    def __call__(self, moment: Moment) -> bool: ...


@runtime_checkable
class Pruning(When, Protocol):
    """A rule that says itself which slots stay while decoding: nothing is scored then.

    ``keeps`` marks them among ``slots`` slots, right-aligned; ``moment.stored`` of them are in use.
    """

    def keeps(self, moment: Moment, slots: int) -> Bool[Tensor, "b h n"]: ...


@runtime_checkable
class EvenPruning(Pruning, Protocol):
    """A pruning rule that says in plain numbers which pairs leave where all heads hold the same:
    what ``keeps`` says for one head, as the range of their places in order. Numbers are those of
    :class:`Moment`.
    """

    def leave(self, stored: int, seen: int, length: int, kept: int) -> range: ...


@runtime_checkable
class Attend(Protocol):
    """How later queries attend to a compressed layer: exp(x_i) / (n + sum_j exp(x_j))."""

    @property
    def n(self) -> float: ...


@runtime_checkable
class Store(Protocol):
    """How kept pairs are held. ``exact`` is True if they are held as they come.

    Called whenever some pairs of a layer have been kept, also with pairs that it made itself.
    """

    @property
    def exact(self) -> bool: ...

    def __call__(self, pairs: Pairs) -> Pairs: ...


@runtime_checkable
class StoresByModality(Store, Protocol):
    """A store that holds visual tokens otherwise than text: it is called with which of the columns
    seen so far are visual. What it is not told of is text.
    """

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> Pairs: ...


class Held(NamedTuple):
    """What a store is to hold of a layer: ``counts`` pairs of each row and head, of a prompt of so
    many ``columns``, and room for ``spare`` more in every head. The merge has ``zeroed`` so many
    channels of all keys but the last.
    """

    counts: Int[Tensor, "b h"]
    form: Form
    columns: int
    spare: int = 0
    zeroed: int = 0


@runtime_checkable
class Weighs(Store, Protocol):
    """A store that says beforehand what pairs take, so that a budget may be one in bytes."""

    def bytes_of(self, held: Held) -> int: ...


@runtime_checkable
class Zeroes(Merge, Protocol):
    """A merge that zeroes some channels of each head's keys, except in the last ``recent`` tokens:
    of so many channels, at least ``zeroed`` of them.
    """

    @property
    def recent(self) -> int: ...

    def zeroed(self, channels: int) -> int: ...


@runtime_checkable
class Restores(Store, Protocol):
    """A store whose pairs can be saved: it makes them again from what their ``tensors()`` were.
    ``first`` is their first column that is not listed. A store that hands on pairs in full
    precision needs none.
    """

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> Pairs: ...


@stage("softmax")
class Softmax:
    """The model's own softmax."""

    n: float = field(default=0.0, init=False)


@stage("full_precision")
class FullPrecision:
    """Kept pairs are held as the model made them."""

    exact: bool = field(default=True, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        return pairs

    def bytes_of(self, held: Held) -> int:
        """Keys, values and columns."""
        return exact_bytes(held.counts, held.form.pair, held.spare)


@stage("no_merge", head_by_head=True)
class NoMerge:
    """Kept pairs stay as they are."""

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        return scored.layer.k, scored.layer.v


@stage("after_prefill")
class AfterPrefill:
    """Once, when the prompt is complete."""

    decodes: bool = field(default=False, init=False)
    reads: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt
