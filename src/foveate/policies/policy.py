"""Policies as data: score -> budget -> select -> merge -> when, attend, store, and prune.

A policy has one stage for each of the Protocols in ``foveate.policies.protocols``. ``attend`` is
the answer's attention, ``store`` the storage of kept pairs; ``prune`` comes first and chooses the
visual tokens to compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from foveate.errors import InvalidBudget, InvalidParameter, suggest
from foveate.policies.amount import AUTO, Amount, AmountLike
from foveate.policies.protocols import (
    AcrossLayers,
    AfterPrefill,
    Attend,
    Budget,
    EachByItself,
    ForeseeableByHead,
    FullPrecision,
    KnownAtMost,
    Merge,
    NoMerge,
    Planned,
    Pruning,
    ReadsAgain,
    ReadsWindowSums,
    RunningScore,
    Scope,
    Score,
    Select,
    Softmax,
    Store,
    StoresByModality,
    Weighs,
    When,
)
from foveate.policies.pruning import Prune
from foveate.policies.spec import EVERY_SLOT, SLOTS, make_stage, print_arguments
from foveate.policies.traits import trait, wrapped


class Origin(NamedTuple):
    """The method call that built a policy, which its spec prints."""

    build: Any  # foveate.policies.method.Method
    arguments: Mapping[str, Any]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Score -> budget -> select -> merge -> when, the answer's attention, and the storage of pairs.

    The optional ``prune`` comes before these: it chooses the visual tokens to compute. Immutable;
    prints as a spec that parses back.
    """

    score: Score
    budget: Budget
    select: Select
    merge: Merge = NoMerge()
    when: When = AfterPrefill()
    attend: Attend = Softmax()
    store: Store = FullPrecision()
    prune: Prune | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        protocols = (Score, Budget, Select, Merge, When, Attend, Store)
        for slot, protocol in zip((*SLOTS, "prune"), (*protocols, Prune), strict=True):
            value = getattr(self, slot)
            if slot == "prune" and value is None:
                continue
            others = (Score, Budget, Select, When, Store, Prune)
            elsewhere = slot == "merge" and isinstance(value, others)
            if isinstance(value, type) or elsewhere or not isinstance(value, protocol):
                raise InvalidParameter(
                    f"{slot}={value!r} is not a {slot} stage: it does not implement "
                    f"{protocol.__module__}.{protocol.__name__}."
                )
        self._check_bytes()
        self._check_auto()
        self._check_again()
        self._check_growing()

    def check_strictly(self) -> None:
        """Raise InvalidBudget if no long prompt's budget can hold what is always kept."""
        amount, protected = self.amount, self.select.protects
        if amount.kind == "tokens" and amount.value < protected:
            raise InvalidBudget(
                f"budget {amount} is smaller than the {protected} tokens that are always kept "
                f"(observation window and sinks count inside the budget). Raise the budget to at "
                f"least {protected}, or lower the window.{amount.or_share}"
            )

    def _check_bytes(self) -> None:
        if self.amount.kind != "bytes":
            return
        if not isinstance(self.store, Weighs):
            raise InvalidBudget(
                f"budget {self.amount} counts bytes, and {self.store!r} does not say how many its "
                "pairs take. Give a share (20%) or a number of tokens."
            )
        if not self.store.exact and self.beyond:
            raise InvalidBudget(
                f"budget {self.amount} also limits the answer under {self.when!r}, and the size of "
                f"{self.store!r} while it grows is not known beforehand. Give a share (20%) or a "
                "number of tokens, or when=after_prefill."
            )

    def _check_auto(self) -> None:
        auto, rule = self.amount.kind == "auto", self.when
        if isinstance(self.budget, EachByItself) and not auto:
            raise InvalidBudget(
                f"budget {self.amount}: {self.budget!r} has no total, because every head keeps a "
                "share of its own importance. Give an auto amount, such as auto(0.98)."
            )
        absolute = trait(self.budget, "absolute")
        if auto and not absolute and (rule.reads or self.compresses_again):
            raise InvalidBudget(
                f"budget {self.amount} follows from the scores of a whole prompt, and {rule!r} "
                "compresses again as tokens arrive, to a size that has to be known. Give a share "
                "(20%) or a number of tokens, or when=after_prefill."
            )

    def _check_again(self) -> None:
        rule = self.when
        score = self.reads_again
        goes_on = score is not None and rule.reads and score.reading.prompt
        if goes_on or (score and self.compresses_again):
            raise InvalidParameter(
                f"{score!r} needs passes after the complete prompt, and {rule!r} compresses as "
                "tokens arrive. Use when=after_prefill."
            )

    def _check_growing(self) -> None:
        if not self.grows:
            return
        if self.amount.kind != "fraction":
            raise InvalidBudget(
                f"budget {self.amount} does not grow with the answer, as {self.when!r} needs. "
                "Give a share (20%), or leave growing out."
            )
        if self.budget.scope == "model" or isinstance(self.budget, (Planned, ForeseeableByHead)):
            raise InvalidParameter(
                f"{self.when!r} holds every head at the same share of what is seen, and "
                f"{self.budget!r} gives layers or heads different ones. Use when=fixed_slot, which "
                "holds each at its own, or budget=uniform(amount=...)."
            )

    @property
    def name(self) -> str:
        """The method's name, or "policy" for one that was put together by hand."""
        return self.origin.build.name if self.origin else "policy"

    @cached_property
    def amount(self) -> Amount:
        """The amount of the budget."""
        return Amount.of(self.budget.amount)

    @cached_property
    def left_open(self) -> tuple[str, ...]:
        """Shares with ``auto``, which the budget decides.

        "keep" is the share of visual tokens that the prune stage computes; "bits" are those of the
        store.
        """
        stages = {"keep": self.prune, "bits": self.store}
        return tuple(name for name, stage in stages.items() if getattr(stage, name, None) == AUTO)

    def tokens(self, lengths: Int[Tensor, "b"], pair_bytes: int) -> Int[Tensor, "b"]:
        """Return each row's budget, in tokens per KV head and layer.

        It is at least what the selection always keeps by position (observation window and sinks).

        Args:
            lengths: tokens of each row's prompt, padding excluded.
            pair_bytes: as for :meth:`Amount.tokens`.

        Raises:
            InvalidBudget: the bytes do not hold one token per row.
        """
        return self.amount.tokens(lengths, pair_bytes).clamp_min(self.least)

    # Facts about the stages, cached because isinstance() with a Protocol is slow

    @cached_property
    def keeps_by_position(self) -> bool:
        """True if protected slots follow from positions and the budget alone."""
        return bool(trait(self.select, "by_position"))

    @cached_property
    def spares(self) -> bool:
        """True if the selection may keep fewer slots than its budget."""
        return bool(trait(self.select, "spares"))

    @cached_property
    def beyond(self) -> int:
        """Limit of a head's growth beyond the pairs it kept last; 0: no limit."""
        return int(trait(self.when, "beyond"))

    @cached_property
    def grows(self) -> bool:
        """True if the budget grows with the tokens seen."""
        return bool(trait(self.when, "growing"))

    @cached_property
    def prunes(self) -> Pruning | None:
        """The rule, if it chooses the slots that stay while decoding, else None."""
        return self.when if isinstance(self.when, Pruning) else None

    @cached_property
    def compresses_again(self) -> bool:
        """True if layers are scored and compressed while decoding."""
        return self.when.decodes and self.prunes is None

    @cached_property
    def stores_by_modality(self) -> StoresByModality | None:
        """The store, if it treats visual tokens and text differently, else None."""
        return self.store if isinstance(self.store, StoresByModality) else None

    @cached_property
    def each_by_itself(self) -> bool:
        """True if the budget has no total."""
        return isinstance(self.budget, EachByItself)

    @cached_property
    def sheds(self) -> KnownAtMost | None:
        """The budget, if layers can drop pairs before all of them are read, else None."""
        known = (
            isinstance(self.budget, KnownAtMost)
            and self.scope == "model"
            and not self.reads_again
            and not self.across_layers
            and self.amount.kind in ("fraction", "tokens")
            and bool(trait(self.select, "drops_lowest"))
            and isinstance(self.merge, NoMerge)
            and isinstance(self.store, FullPrecision)
        )
        return self.budget if known else None  # type: ignore[return-value]

    @property
    def least(self) -> int:
        """The smallest budget that holds one token, and what is always kept by position."""
        return max(1, self.select.protects)

    @cached_property
    def scope(self) -> Scope:
        """Scope of compression: "layer" one by one during the prefill, "model" all layers at once.

        "model" compresses after the last layer, and after a re-prefill.
        """
        later = self.reads_again or self.across_layers
        return "model" if later else self.budget.scope

    @cached_property
    def across_layers(self) -> AcrossLayers | None:
        """The score that depends on those of other layers, if any."""
        scores = (score for score in wrapped(self.score) if isinstance(score, AcrossLayers))
        return next(scores, None)

    @cached_property
    def running(self) -> tuple[RunningScore, ...]:
        """All scores, wrapped ones included, that observe every query."""
        return tuple(score for score in wrapped(self.score) if isinstance(score, RunningScore))

    @cached_property
    def planned(self) -> Planned | None:
        """The budget, if it plans a total for each layer, else None."""
        planned = self.scope == "layer" and isinstance(self.budget, Planned)
        return self.budget if planned else None  # type: ignore[return-value]

    @cached_property
    def reads_column_sums(self) -> bool:
        """True if a score needs the attention's column sums."""
        return any(trait(score, "reads_column_sums") for score in wrapped(self.score))

    @cached_property
    def reads_column_maxima(self) -> bool:
        """True if the score that observes a re-prefill needs the attention's column maxima."""
        return bool(self.reads_again) and bool(trait(self.reads_again, "reads_column_maxima"))

    @cached_property
    def reads_output_weight(self) -> bool:
        """True if a score needs the projection of the heads' outputs."""
        return any(trait(score, "reads_output_weight") for score in wrapped(self.score))

    @cached_property
    def reads_residual_norm(self) -> bool:
        """True if a score needs the norms of the residual stream."""
        return any(trait(score, "reads_residual_norm") for score in wrapped(self.score))

    @cached_property
    def reads_hidden_states(self) -> bool:
        """True if a score needs the hidden states that the attention reads."""
        return any(trait(score, "reads_hidden_states") for score in wrapped(self.score))

    @cached_property
    def reads_indexer(self) -> bool:
        """True if a score needs the choices of the model's indexer."""
        return any(trait(score, "reads_indexer") for score in wrapped(self.score))

    @cached_property
    def reads_window_sums(self) -> ReadsWindowSums | None:
        """The innermost score that needs sums of the last queries' attention, if any."""
        scores = [score for score in wrapped(self.score) if isinstance(score, ReadsWindowSums)]
        return scores[-1] if scores else None

    @cached_property
    def reads_again(self) -> ReadsAgain | None:
        """The score that observes a re-prefill, if any."""
        return next((score for score in wrapped(self.score) if isinstance(score, ReadsAgain)), None)

    @cached_property
    def rewrites(self) -> bool:
        """True if heads stay equally long while decoding, because each new pair replaces one.

        The replaced pair is the one with the lowest running sum.
        """
        plain = isinstance(self.merge, NoMerge) and self.store.exact and not self.attend.n
        return (
            plain
            and bool(trait(self.when, "one_by_one"))
            and isinstance(self.score, RunningScore)
            and bool(trait(self.score, "slotwise"))
            and bool(trait(self.budget, "steady"))
            and bool(trait(self.select, "drops_lowest"))
        )

    @property
    def spec(self) -> str:
        """The text that ``foveate.policy`` parses to an equal policy."""
        if self.origin is None:
            defaults = {"attend": Softmax(), "store": FullPrecision(), "prune": None}
            slots = {s: getattr(self, s) for s in EVERY_SLOT}
            printed = {s: stage for s, stage in slots.items() if stage != defaults.get(s)}
            return f"policy:{print_arguments(printed)}"
        overrides = {s: self.origin.overrides[s] for s in EVERY_SLOT if s in self.origin.overrides}
        arguments = self.origin.build.non_default(self.origin.arguments) | overrides
        return f"{self.name}:{print_arguments(arguments)}" if arguments else self.name

    def __str__(self) -> str:
        return self.spec

    def but(self, **changes: Any) -> Policy:
        """Return a copy with other stages, or with other parameters of the method.

        ``policy.but(budget=0.1)``, ``.but(window=16)``, ``.but(select=TopK(recent=8))``.

        Raises:
            InvalidParameter: a name is neither a stage nor a parameter of the method.
        """
        stages = {
            slot: make_stage(new, {}) if isinstance(new, str) else new
            for slot, new in changes.items()
            if slot in self._slots and not (slot == "budget" and _is_amount(new))
        }
        others = {k: v for k, v in changes.items() if k not in stages}
        if self.origin is None:
            return self._replace_by_hand(stages, others)
        build, arguments, overrides = self.origin
        overrides = {**overrides, **stages}
        if "budget" in others and "budget" in overrides:
            overrides["budget"] = with_amount(overrides["budget"], others["budget"])
        elif "budget" in stages and "budget" in build.parameters:
            others["budget"] = amount_of(stages["budget"])
        fresh: Policy = build(**{**arguments, **others})
        changed: Policy = dataclasses.replace(
            fresh,
            **overrides,
            origin=fresh.origin._replace(overrides=overrides),  # type: ignore[union-attr]
        )
        return changed

    @property
    def _slots(self) -> tuple[str, ...]:
        """Names of stages in a spec, except a name that is a parameter of the method ("prune")."""
        taken = self.origin is not None and "prune" in self.origin.build.parameters
        return SLOTS if taken else EVERY_SLOT

    def _replace_by_hand(self, stages: dict[str, Any], others: dict[str, Any]) -> Policy:
        if "budget" in others:
            stages["budget"] = with_amount(self.budget, others.pop("budget"))
        if others:
            name = next(iter(others))
            raise InvalidParameter(f"a policy has no stage {name!r}. {suggest(name, EVERY_SLOT)}")
        return dataclasses.replace(self, **stages)


def amount_of(stage: Any) -> Any:
    """Return the amount of a budget stage.

    Raises:
        InvalidParameter: the stage is no budget.
    """
    if not isinstance(stage, Budget):
        raise InvalidParameter(f"budget={stage!r} is no budget stage: it has no amount.")
    return stage.amount


def with_amount(stage: Any, amount: AmountLike) -> Any:
    """Return the same budget stage with another amount.

    Raises:
        InvalidParameter: the stage is no budget.
        InvalidBudget: the amount is invalid.
    """
    amount_of(stage)
    return dataclasses.replace(stage, amount=Amount.of(amount))


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float, str, Amount))
