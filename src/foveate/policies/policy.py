"""A policy is data: score -> budget -> select -> merge -> when, how the answer attends, and how the
kept pairs are held; before all of these, which visual tokens are computed.

A policy is one of each of the stages that the Protocols in ``foveate.policies.protocols`` describe.
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
    """The method call that a policy came from: what its spec string prints."""

    build: Any  # foveate.policies.method.Method
    arguments: Mapping[str, Any]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Score -> budget -> select -> merge -> when, how the answer attends to what is kept, and how
    that is stored. ``prune``, if there is one, says before that which visual tokens are computed.

    Immutable; prints as a spec that parses back.
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
                    f"{slot}={value!r} is not a {slot} stage: it lacks what "
                    f"{protocol.__module__}.{protocol.__name__} asks for."
                )
        self._check_bytes()
        self._check_auto()
        self._check_again()
        self._check_growing()

    def check_strictly(self) -> None:
        """Raises InvalidBudget where no long prompt's budget could hold what is always kept."""
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
                f"budget {self.amount} bounds the answer, too, under {self.when!r}, and how many "
                f"bytes {self.store!r} comes to while it grows is not known beforehand. Give a "
                "share (20%) or a number of tokens, or when=after_prefill."
            )

    def _check_auto(self) -> None:
        auto, rule = self.amount.kind == "auto", self.when
        if isinstance(self.budget, EachByItself) and not auto:
            raise InvalidBudget(
                f"budget {self.amount}: {self.budget!r} has no total, as every head keeps what "
                "holds a share of its own importance. Give an auto amount, such as auto(0.98)."
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
                f"{score!r} looks on while more is read after the whole prompt, and {rule!r} "
                "compresses as tokens arrive. Use when=after_prefill."
            )

    def _check_growing(self) -> None:
        if not self.grows:
            return
        if self.amount.kind != "fraction":
            raise InvalidBudget(
                f"budget {self.amount} does not grow with the answer, as {self.when!r} asks for. "
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
        """How much is kept."""
        return Amount.of(self.budget.amount)

    @cached_property
    def left_open(self) -> tuple[str, ...]:
        """What it leaves to its budget to say (:mod:`foveate.compression.dividing`): "keep", the
        share of visual tokens that its prune stage has computed, and "bits", those of its store.
        """
        said = {"keep": self.prune, "bits": self.store}
        return tuple(name for name, stage in said.items() if getattr(stage, name, None) == AUTO)

    def tokens(self, lengths: Int[Tensor, "b"], pair_bytes: int) -> Int[Tensor, "b"]:
        """Each row's budget, in tokens per KV head and layer.

        It is at least what the selection always keeps by position (observation window and sinks).

        Args:
            lengths: tokens of each row's prompt, padding excluded.
            pair_bytes: as for :meth:`Amount.tokens`.

        Raises:
            InvalidBudget: bytes that do not hold one token a row.
        """
        return self.amount.tokens(lengths, pair_bytes).clamp_min(self.least)

    # What stages say of themselves, asked once: whether a Protocol is met takes long to find out

    @cached_property
    def keeps_by_position(self) -> bool:
        """Whether what it always keeps follows from positions and the budget alone."""
        return bool(trait(self.select, "by_position"))

    @cached_property
    def spares(self) -> bool:
        """Whether its selection may keep fewer slots than it is told."""
        return bool(trait(self.select, "spares"))

    @cached_property
    def beyond(self) -> int:
        """How many pairs more than it kept last a head may hold; 0: without a bound."""
        return int(trait(self.when, "beyond"))

    @cached_property
    def grows(self) -> bool:
        """Whether its budget grows with what is seen."""
        return bool(trait(self.when, "growing"))

    @cached_property
    def prunes(self) -> Pruning | None:
        """Its rule, if that says by itself which slots stay while decoding."""
        return self.when if isinstance(self.when, Pruning) else None

    @cached_property
    def compresses_again(self) -> bool:
        """Whether layers are scored and compressed while decoding."""
        return self.when.decodes and self.prunes is None

    @cached_property
    def stores_by_modality(self) -> StoresByModality | None:
        """Its store, if that holds visual tokens otherwise than text."""
        return self.store if isinstance(self.store, StoresByModality) else None

    @cached_property
    def each_by_itself(self) -> bool:
        """Whether its budget has no total."""
        return isinstance(self.budget, EachByItself)

    @cached_property
    def sheds(self) -> KnownAtMost | None:
        """Its budget, if layers can let a part of their pairs go before all of them are read."""
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
        """The smallest budget that holds what is always kept by position, and one token."""
        return max(1, self.select.protects)

    @cached_property
    def scope(self) -> Scope:
        """Whether it compresses layer by layer during the prefill, or once after all layers (and
        after what reads the prompt again).
        """
        later = self.reads_again or self.across_layers
        return "model" if later else self.budget.scope

    @cached_property
    def across_layers(self) -> AcrossLayers | None:
        """The score that goes by those of other layers, if one does."""
        scores = (one for one in wrapped(self.score) if isinstance(one, AcrossLayers))
        return next(scores, None)

    @cached_property
    def running(self) -> tuple[RunningScore, ...]:
        """The scores, wrapped ones included, that follow every query."""
        return tuple(each for each in wrapped(self.score) if isinstance(each, RunningScore))

    @cached_property
    def planned(self) -> Planned | None:
        """Its budget, if that plans a total for each layer."""
        planned = self.scope == "layer" and isinstance(self.budget, Planned)
        return self.budget if planned else None  # type: ignore[return-value]

    @cached_property
    def reads_column_sums(self) -> bool:
        """Whether a score asks for the attention's column sums."""
        return any(trait(each, "reads_column_sums") for each in wrapped(self.score))

    @cached_property
    def reads_column_maxima(self) -> bool:
        """Whether the score that looks on while the prompt is read again asks for the maxima of the
        attention's columns.
        """
        return bool(self.reads_again) and bool(trait(self.reads_again, "reads_column_maxima"))

    @cached_property
    def reads_output_weight(self) -> bool:
        """Whether a score asks for the projection of the heads' outputs."""
        return any(trait(each, "reads_output_weight") for each in wrapped(self.score))

    @cached_property
    def reads_residual_norm(self) -> bool:
        """Whether a score asks for the norms of the residual stream."""
        return any(trait(each, "reads_residual_norm") for each in wrapped(self.score))

    @cached_property
    def reads_window_sums(self) -> ReadsWindowSums | None:
        """The innermost score that reads what the last queries pay in all, if one does."""
        scores = [each for each in wrapped(self.score) if isinstance(each, ReadsWindowSums)]
        return scores[-1] if scores else None

    @cached_property
    def reads_again(self) -> ReadsAgain | None:
        """The score that looks on while the prompt is read again, if one does."""
        return next((one for one in wrapped(self.score) if isinstance(one, ReadsAgain)), None)

    @cached_property
    def rewrites(self) -> bool:
        """Whether heads that hold the same number lose one pair for each that comes while decoding,
        the one whose running sum is lowest.
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
        """The text from which ``foveate.policy`` makes an equal policy."""
        if self.origin is None:
            usual = {"attend": Softmax(), "store": FullPrecision(), "prune": None}
            slots = {s: getattr(self, s) for s in EVERY_SLOT}
            said = {s: stage for s, stage in slots.items() if stage != usual.get(s)}
            return f"policy:{print_arguments(said)}"
        overrides = {s: self.origin.overrides[s] for s in EVERY_SLOT if s in self.origin.overrides}
        given = self.origin.build.non_default(self.origin.arguments) | overrides
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
        made: Policy = dataclasses.replace(
            fresh,
            **overrides,
            origin=fresh.origin._replace(overrides=overrides),  # type: ignore[union-attr]
        )
        return made

    @property
    def _slots(self) -> tuple[str, ...]:
        """What names a stage in a spec: a method may have a parameter of the name "prune"."""
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
    """The amount of a budget stage.

    Raises:
        InvalidParameter: the stage is another one.
    """
    if not isinstance(stage, Budget):
        raise InvalidParameter(f"budget={stage!r} is no budget stage: it has no amount.")
    return stage.amount


def with_amount(stage: Any, amount: AmountLike) -> Any:
    """The same budget stage, of another amount; errors as above."""
    amount_of(stage)
    return dataclasses.replace(stage, amount=Amount.of(amount))


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float, str, Amount))
