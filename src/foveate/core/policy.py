"""A policy is data: score -> budget -> select -> merge -> when, and how the answer attends.

The stages are pure functions of tensors, described by the Protocols below; a policy is one of each.
The identity stages live here (:class:`NoMerge`, :class:`AfterPrefill`, :class:`Softmax`), all
others in ``foveate.stages`` and in the papers' files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.amount import Amount, AmountLike
from foveate.core.errors import InvalidBudget, InvalidParameter, suggest
from foveate.core.layer import Layer, Scored, Scores
from foveate.core.spec import SLOTS, make_stage, print_arguments, stage

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
class Select(Protocol):
    """Which slots are kept, given scores and counts.

    ``protects`` is the least number of slots that ``protect`` marks in a long prompt; it is checked
    against the budget when the policy is made.
    """

    @property
    def protects(self) -> int: ...

    def protect(self, layer: Layer, tokens: Int[Tensor, "b"]) -> Bool[Tensor, "b h n"]: ...

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
    decoding, which then costs nothing.
    """

    @property
    def decodes(self) -> bool: ...

    def __call__(self, moment: Moment) -> bool: ...


@runtime_checkable
class Pruning(When, Protocol):
    """A rule that says itself which slots stay while decoding: nothing is scored then.

    ``keeps`` marks them among ``slots`` right-aligned slots, ``moment.stored`` of which hold a pair.
    """

    def keeps(self, moment: Moment, slots: int) -> Bool[Tensor, "b h n"]: ...


@runtime_checkable
class Attend(Protocol):
    """How later queries attend to a compressed layer: exp(x_i) / (n + sum_j exp(x_j))."""

    @property
    def n(self) -> float: ...


@stage("softmax")
@dataclass(frozen=True, kw_only=True)
class Softmax:
    """The model's own softmax."""

    n: float = field(default=0.0, init=False)


@stage("no_merge")
@dataclass(frozen=True, kw_only=True)
class NoMerge:
    """Kept pairs stay as they are."""

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        return scored.layer.k, scored.layer.v


@stage("after_prefill")
@dataclass(frozen=True, kw_only=True)
class AfterPrefill:
    """Once, when the prompt is complete."""

    decodes: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt


class Origin(NamedTuple):
    """The method call that a policy came from: what its spec string prints."""

    build: Any  # foveate.core.method.Method
    arguments: Mapping[str, Any]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Score -> budget -> select -> merge -> when, and how the answer attends to what is kept.

    Immutable; prints as a spec that parses back.
    """

    score: Score
    budget: Budget
    select: Select
    merge: Merge = NoMerge()
    when: When = AfterPrefill()
    attend: Attend = Softmax()
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        protocols = (Score, Budget, Select, Merge, When, Attend)
        for slot, protocol in zip(SLOTS, protocols, strict=True):
            value = getattr(self, slot)
            elsewhere = slot == "merge" and isinstance(value, (Score, Budget, Select, When))
            if isinstance(value, type) or elsewhere or not isinstance(value, protocol):
                raise InvalidParameter(
                    f"{slot}={getattr(self, slot)!r} is not a {slot} stage: it lacks what "
                    f"foveate.core.policy.{protocol.__name__} asks for."
                )
        amount, protected = self.amount, self.select.protects
        if amount.kind == "tokens" and amount.value < protected:
            raise InvalidBudget(
                f"budget {amount} is smaller than the {protected} tokens that are always kept "
                f"(observation window and sinks count inside the budget). Raise the budget to at "
                f"least {protected}, or lower the window."
            )

    @property
    def name(self) -> str:
        """The method's name, or "policy" for one that was put together by hand."""
        return self.origin.build.name if self.origin else "policy"

    @property
    def amount(self) -> Amount:
        """How much is kept."""
        return Amount.of(self.budget.amount)

    @property
    def scope(self) -> Scope:
        """Whether it compresses layer by layer during the prefill, or once after all layers."""
        return self.budget.scope

    @property
    def spec(self) -> str:
        """The text from which ``foveate.policy`` makes an equal policy."""
        if self.origin is None:
            slots = {s: getattr(self, s) for s in SLOTS if s != "attend" or self.attend != Softmax()}
            return f"policy:{print_arguments(slots)}"
        overrides = {s: self.origin.overrides[s] for s in SLOTS if s in self.origin.overrides}
        given = self.origin.build.given(self.origin.arguments) | overrides
        return f"{self.name}:{print_arguments(given)}" if given else self.name

    def __str__(self) -> str:
        return self.spec

    def but(self, **changes: Any) -> Policy:
        """A copy in which some stages, or some of the method's parameters, are others.

        ``policy.but(budget=0.1)``, ``.but(window=16)``, ``.but(select=TopK(recent=8))``.

        Raises:
            InvalidParameter: a name that is neither a stage nor a parameter of the method.
        """
        stages = {
            slot: make_stage(new, {}) if isinstance(new, str) else new
            for slot, new in changes.items()
            if slot in SLOTS and not (slot == "budget" and _is_amount(new))
        }
        others = {k: v for k, v in changes.items() if k not in stages}
        if self.origin is None:
            return self._replace_by_hand(stages, others)
        build, arguments, overrides = self.origin
        overrides = {**overrides, **stages}
        if "budget" in others and "budget" in overrides:
            amount = Amount.of(others["budget"])
            overrides["budget"] = dataclasses.replace(overrides["budget"], amount=amount)
        elif "budget" in stages and "budget" in build.parameters:
            others["budget"] = stages["budget"].amount
        fresh: Policy = build(**{**arguments, **others})
        made: Policy = dataclasses.replace(
            fresh,
            **overrides,
            origin=fresh.origin._replace(overrides=overrides),  # type: ignore[union-attr]
        )
        return made

    def _replace_by_hand(self, stages: dict[str, Any], others: dict[str, Any]) -> Policy:
        if "budget" in others:
            amount = Amount.of(others.pop("budget"))
            stages["budget"] = dataclasses.replace(self.budget, amount=amount)  # type: ignore[type-var]
        if others:
            name = next(iter(others))
            raise InvalidParameter(f"a policy has no stage {name!r}. {suggest(name, SLOTS)}")
        return dataclasses.replace(self, **stages)


def wrapped(score: Score) -> Iterator[Score]:
    """The score, what it wraps, what that wraps, and so on."""
    inner: Any = score
    while inner is not None:
        yield inner
        inner = getattr(inner, "of", None)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float, str, Amount))
