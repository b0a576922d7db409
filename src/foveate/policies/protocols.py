"""Protocols of a policy's stages: pure functions of tensors.

Further facts that a stage may declare are in ``policies/traits.py``. The identity stages are here
too (:class:`NoMerge`, :class:`AfterPrefill`, :class:`Softmax`, :class:`FullPrecision`); all others
are in ``foveate.stages`` and in the methods' files.
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
    """Importance of each slot. A score that wraps another has it in a field named ``of``.

    ``queries`` returns the number of the prompt's last queries that the score reads (0: none), for
    the largest budget of a row in tokens.
    """

    def queries(self, tokens: int) -> int: ...

    def __call__(self, layer: Layer) -> Scores: ...


@runtime_checkable
class RunningScore(Score, Protocol):
    """A score that sums up something over all queries, in any number of passes.

    ``observe`` is called once per forward pass with that pass's queries, and returns the new
    ``layer.state``: tensors [b h n], one number per slot, which move with the slots.
    """

    def observe(self, layer: Layer) -> Mapping[str, Tensor]: ...


@runtime_checkable
class ReadsWindowSums(Protocol):
    """A score that reads ``layer.window_sums``, attention of the last queries.

    ``window_weights`` declares the weights of the sums for the prompt's slots, so that a backend's
    attention can compute them as a by-product.
    """

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights: ...


class Rereading(NamedTuple):
    """Tokens read after a prompt, in probe passes that a score observes.

    ``prompt``: the prompt itself, at most ``chunk`` tokens at a time, each image separately if
    ``by_image``. ``follow_ups``: questions as texts; each is read with the model's own greedy
    answer, of at most ``longest`` tokens; if ``bare``, as it is and without an answer. ``closing``:
    the text that the model's chat template puts after a user's message. ``questions`` are questions
    as token ids, which follow the prompt's first ``after`` tokens and replace the others, for a
    score that :class:`ReadsGradients`.
    """

    chunk: int
    prompt: bool = True
    by_image: bool = False
    follow_ups: tuple[str, ...] = ()
    longest: int = 1
    bare: bool = False
    questions: tuple[tuple[int, ...], ...] = ()
    after: int = 0
    closing: bool = False


@runtime_checkable
class ReadsAgain(Protocol):
    """A score that observes probe passes after a prompt's own cache, such as the prompt once more.

    A backend with the model feeds the tokens of ``reading``, and then discards their pairs.

    ``again`` is called once per pass. The layer's queries are those of the pass, its last slots
    their own. The returned tensors of the slots before those, [b h n], are added to ``layer.state``
    as for a :class:`RunningScore`. A token of the prompt has its own position plus the prompt's
    length; questions and answers come after all of these. The score itself is computed after all
    passes.
    """

    @property
    def reading(self) -> Rereading: ...

    def again(self, layer: Layer) -> Mapping[str, Tensor]: ...


@runtime_checkable
class AcrossLayers(Score, Protocol):
    """A score that also depends on the scores of other layers. Its policy has scope "model".

    Once all layers have been scored, ``together`` returns their final values, layer after layer.
    """

    def together(self, scored: Sequence[Scored]) -> list[Float[Tensor, "b h n"]]: ...


@runtime_checkable
class ReadsGradients(ReadsAgain, Protocol):
    """A score that also observes the ``questions`` of its ``reading``, with gradients.

    The gradient is that of the model's confidence in its own answer with respect to each head's
    output, [b, m, hq, e]. ``answered`` returns tensors of all slots of the prompt, [b, h, n],
    including those after the first ``after``.
    """

    def answered(
        self, layer: Layer, gradient: Float[Tensor, "b m hq e"]
    ) -> Mapping[str, Tensor]: ...


@runtime_checkable
class Budget(Protocol):
    """Number of slots that each KV head keeps.

    With scope "layer" it is called with one layer at a time, as soon as that layer's prefill is
    done; with scope "model" once, with all layers, whose full caches are stored until then.
    ``tokens`` is the average per KV head and layer, per row. The counts of a row add up to
    ``tokens`` times the number of heads (less only if fewer slots exist), and are between the
    protected and the available slots.
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
    """A budget without a total: each KV head keeps slots with a share of its own importance.

    It needs an auto amount.
    """

    def holding(self, scored: Scored, share: float) -> Int[Tensor, "b h"]: ...


@runtime_checkable
class KnownAtMost(Protocol):
    """A budget with scope "model" that knows limits of each head before all layers are scored.

    ``at_most`` returns the largest number of their best pairs that heads may get, whatever the
    later layers have. ``heads`` are the KV heads of all layers, or more.
    """

    def at_most(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int
    ) -> Sequence[Int[Tensor, "b h"]]: ...


@runtime_checkable
class Planned(Protocol):
    """A budget with scope "layer" whose layers keep different totals, which are known beforehand.

    ``pairs`` is the number of pairs of each row that a layer keeps over all its KV heads. Over all
    layers of a prompt they add up to the budget.
    """

    def pairs(self, scored: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]: ...


LayerCounts = Callable[[int, int, int], tuple[int, ...]]
"""Function from (average tokens, protected tokens, prompt length) to tokens per KV head.

It returns a number per layer, or per KV head, layer after layer. It is hashable, and can be
pickled.
"""


@runtime_checkable
class Foreseeable(Protocol):
    """A budget whose layers may keep different numbers, which follow from lengths alone.

    All heads of a layer keep the same number, known before anything is computed. ``foreseeable`` is
    False while information for that is missing. ``by_length`` returns the rule for ``depth``
    compressed layers, in exact integers.
    """

    @property
    def foreseeable(self) -> bool: ...

    def by_length(self, depth: int) -> LayerCounts: ...


@runtime_checkable
class ForeseeableByHead(Protocol):
    """A budget whose KV heads may keep different numbers, which follow from lengths alone.

    ``by_head`` returns the rule for the ``heads`` of each of ``depth`` layers, layer after layer.
    """

    def by_head(self, depth: int, heads: int) -> LayerCounts: ...


@runtime_checkable
class Select(Protocol):
    """Choice of the slots to keep, from scores and counts.

    ``protects`` is the smallest budget that holds the slots that ``protect`` marks by position
    alone (sinks, recent tokens) in a long prompt: a smaller budget is raised to it.
    """

    @property
    def protects(self) -> int: ...

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]: ...

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]: ...


@runtime_checkable
class Merge(Protocol):
    """Merging of dropped pairs into kept ones.

    Returns all slots' keys and values; those of the kept slots are stored.
    """

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]: ...


class Moment(NamedTuple):
    """State of one layer after a forward pass, when a rule is evaluated.

    ``prompt`` is True when that pass completed the prompt. ``stored`` counts the pairs of each KV
    head now, ``seen`` the tokens that each row has read, ``length`` those of the prompt that was
    completed last. ``kept`` counts the pairs that each head kept when the layer was last
    compressed; if it never was, it is the row's budget.
    """

    prompt: bool
    stored: Int[Tensor, "b h"]
    seen: Int[Tensor, "b"]
    length: Int[Tensor, "b"]
    kept: Int[Tensor, "b h"]


@runtime_checkable
class When(Protocol):
    """Rule about the moments at which a layer is compressed.

    ``decodes`` is False if the rule is False at every decoding step, which then costs nothing;
    ``reads`` is the same for the passes of a prompt before its last one.
    """

    @property
    def decodes(self) -> bool: ...

    @property
    def reads(self) -> bool: ...

    def __call__(self, moment: Moment) -> bool: ...


@runtime_checkable
class Pruning(When, Protocol):
    """A rule that chooses the slots that stay while decoding, without scores.

    ``keeps`` marks them among ``slots`` slots, right-aligned; ``moment.stored`` of them are in use.
    """

    def keeps(self, moment: Moment, slots: int) -> Bool[Tensor, "b h n"]: ...


@runtime_checkable
class EvenPruning(Pruning, Protocol):
    """A pruning rule that works on plain numbers if all heads have the same.

    ``leave`` returns the pairs that ``keeps`` drops of one head, as a range of their indices in
    order. Arguments are fields of :class:`Moment`.
    """

    def leave(self, stored: int, seen: int, length: int, kept: int) -> range: ...


@runtime_checkable
class Attend(Protocol):
    """Attention of later queries to a compressed layer: exp(x_i) / (n + sum_j exp(x_j))."""

    @property
    def n(self) -> float: ...


@runtime_checkable
class Store(Protocol):
    """Storage of kept pairs. ``exact`` is True if it does not change them.

    Called whenever some pairs of a layer were kept, also with pairs that it returned earlier.
    """

    @property
    def exact(self) -> bool: ...

    def __call__(self, pairs: Pairs) -> Pairs: ...


@runtime_checkable
class StoresLatents(Store, Protocol):
    """A store that can keep values exact: under latent attention these are rotary keys."""

    def of_latents(self) -> Store:
        """Return the same store with exact values."""
        ...


@runtime_checkable
class StoresByModality(Store, Protocol):
    """A store that treats visual tokens and text differently.

    ``visual`` marks the visual ones of the columns seen so far; later columns are text.
    """

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> Pairs: ...


class Held(NamedTuple):
    """Pairs of one layer that a store will contain.

    ``counts`` are pairs of each row and head, of a prompt of ``columns``; every head needs room for
    ``spare`` more. The merge has zeroed ``zeroed`` channels of all keys but the last.
    """

    counts: Int[Tensor, "b h"]
    form: Form
    columns: int
    spare: int = 0
    zeroed: int = 0


@runtime_checkable
class Weighs(Store, Protocol):
    """A store that knows the size of pairs beforehand, so that a budget may be in bytes."""

    def bytes_of(self, content: Held) -> int: ...


@runtime_checkable
class Zeroes(Merge, Protocol):
    """A merge that zeroes some channels of each head's keys, except in the last ``recent`` tokens.

    ``zeroed`` returns the minimum number of zeroed channels.
    """

    @property
    def recent(self) -> int: ...

    def zeroed(self, channels: int) -> int: ...


@runtime_checkable
class Restores(Store, Protocol):
    """A store that can rebuild its pairs from their ``tensors()``, so that they can be saved.

    ``first`` is the first column that is not listed. A store that returns pairs in full precision
    does not need it.
    """

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> Pairs: ...


@stage("softmax")
class Softmax:
    """The model's own softmax."""

    n: float = field(default=0.0, init=False)


@stage("full_precision")
class FullPrecision:
    """Storage of kept pairs as the model computed them."""

    exact: bool = field(default=True, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        return pairs

    def bytes_of(self, content: Held) -> int:
        """Return the bytes of keys, values and columns."""
        return exact_bytes(content.counts, content.form.pair, content.spare)


@stage("no_merge", head_by_head=True)
class NoMerge:
    """No merging: kept pairs are unchanged."""

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        return scored.layer.k, scored.layer.v


@stage("after_prefill")
class AfterPrefill:
    """Compression once, when the prompt is complete."""

    decodes: bool = field(default=False, init=False)
    reads: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt
