"""One budget, divided: how many visual tokens are computed, how many pairs are held, and in how
many bits.

Where a policy's prune stage says ``keep=auto``, or its store ``bits=auto``, its budget is the
whole: a share of the full cache's bytes, or bytes. Of each prompt it is divided in this order:

1. **Bits.** As the model made them where all pairs fit so; else 8, where all fit in 8; else 4.
2. **Pairs.** As many as fit in these bits.
3. **Tokens.** The square root of the share of the pairs that is held: where that is a quarter, half
   of the visual tokens are computed. On a logarithmic scale pruning does half of what is left to
   do; eviction does the rest, so that the budget is met however much of a prompt is text.

What is not ``auto`` is as it was given. No share falls where the budget rises. The order and the
widths rest on ``benchmarks/quality/stack.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foveate.cache.pairs.form import Form
from foveate.compression.byte_budget import Bytes
from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount
from foveate.policies.policy import Policy, with_amount
from foveate.policies.protocols import FullPrecision

WIDTHS = (8, 4)
"""Bits of a number that are tried after those that it came in: the first in which all pairs fit, or
the last.
"""
_WAY_OUT = (
    "Give a share of the full cache's bytes below 100% (budget=10%), or bytes (budget=64MB), or "
    "write the shares out (keep=50%, bits=4)."
)


class Division(NamedTuple):
    """One budget's shares. ``keep`` of the visual tokens are computed, and a number is held in
    ``bits`` (None: as the model made it); each KV head holds ``tokens`` pairs of a row that has as
    many; all that in ``allowed`` bytes over all layers and rows.
    """

    keep: Amount
    bits: int | None
    tokens: int
    allowed: int


def check_one_budget(policy: Policy) -> None:
    """Raises InvalidBudget where something is ``auto``, and the budget cannot be divided."""
    if not policy.left_open:
        return
    said, amount = " and ".join(f"{name}=auto" for name in policy.left_open), policy.amount
    if amount.everything:
        raise InvalidBudget(
            f"{policy}: {said} is to be a part of one budget, and this one is of everything, or "
            f"there is none: nothing is left to divide. {_WAY_OUT}"
        )
    if amount.kind not in ("fraction", "bytes"):
        raise InvalidBudget(
            f"{policy}: {said} is to be a part of one budget in bytes, and budget {amount} counts "
            f"pairs. {_WAY_OUT}"
        )
    try:  # what stands in the way of any budget in bytes, said of this one
        amount = Amount("bytes", amount.value, f"{amount} (of bytes, for {said})")
        replace(policy, budget=replace(policy.budget, amount=amount))  # type: ignore[type-var]
    except InvalidBudget as error:
        raise InvalidBudget(f"{policy}: {error}") from None


def divided(policy: Policy, forms: Sequence[Form], lengths: Sequence[int], columns: int) -> Policy:
    """The policy with its shares written out for a prompt; itself where none is left open.

    Args:
        policy: what to divide the budget of.
        forms: of each compressed layer's pairs.
        lengths: tokens of each row, padding excluded.
        columns: of the batch, padding included.
    """
    if not policy.left_open:
        return policy
    return written_out(policy, divide(policy, forms, lengths, columns))


def divide(policy: Policy, forms: Sequence[Form], lengths: Sequence[int], columns: int) -> Division:
    """The shares of one budget, by the rule above; arguments as for :func:`divided`."""
    allowed = bytes_of(policy.amount, forms, lengths)
    given: Any = getattr(policy.store, "bits", None)
    widths = (None, *WIDTHS) if "bits" in policy.left_open else (given,)
    longest, tokens, bits = max(lengths), 0, widths[-1]
    for bits in widths:
        some = Division(Amount.of(1.0), bits, 0, allowed)
        made = replace(policy, origin=None, **_stages(policy, some))
        tokens = Bytes(made, tuple(forms), columns).tokens(list(lengths))
        if tokens >= longest:
            break
    tokens = min(max(tokens, policy.least), longest)  # raised, as every budget, or then refused
    held = sum(min(tokens, length) for length in lengths) / sum(lengths)
    tenths = max(1, math.ceil(round(1000 * math.sqrt(held), 6)))  # of a percent
    return Division(Amount.of(f"{tenths / 10}%"), bits, tokens, allowed)


def bytes_of(amount: Amount, forms: Sequence[Form], lengths: Sequence[int]) -> int:
    """An amount's bytes: its share of those of all pairs of these rows, padding excluded."""
    if amount.kind == "bytes":
        return int(amount.value)
    full = sum(form.heads * form.pair for form in forms) * sum(lengths)
    return int(amount.value * full)


def written_out(policy: Policy, shares: Division) -> Policy:
    """The policy that says itself what it leaves open, with its budget in bytes; its spec too."""
    stages = _stages(policy, shares)
    if policy.origin is None:
        return replace(policy, **stages)
    build, arguments, overrides = policy.origin
    others = {slot: stage for slot, stage in stages.items() if slot != "budget"}
    if hasattr(build, "with_stages"):
        build, arguments = build.with_stages(arguments, others)
    overrides = {**overrides, **{slot: new for slot, new in others.items() if slot in overrides}}
    origin = policy.origin._replace(build=build, arguments=arguments, overrides=overrides)
    made = replace(policy, origin=origin).but(budget=stages["budget"].amount)
    others = {slot: new for slot, new in others.items() if getattr(made, slot) != new}
    return made.but(**others) if others else made


def _stages(policy: Policy, shares: Division) -> dict[str, Any]:
    """The stages that change."""
    amount = Amount.of(f"{max(1, shares.allowed)}B")
    stages: dict[str, Any] = {"budget": with_amount(policy.budget, amount)}
    prune, store = policy.prune, policy.store
    if "keep" in policy.left_open:
        stages["prune"] = replace(prune, keep=shares.keep)  # type: ignore[type-var]
    if "bits" in policy.left_open and shares.bits is None:
        stages["store"] = FullPrecision()
    elif "bits" in policy.left_open:
        stages["store"] = replace(store, bits=shares.bits)  # type: ignore[type-var]
    return stages
