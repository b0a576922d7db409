"""Division of one budget among visual tokens computed, pairs stored, and bits.

If a policy's prune stage has ``keep=auto``, or its store ``bits=auto``, its budget is divided: a
share of the full cache's bytes, or bytes. It is divided for each prompt, in this order:

1. **Bits.** Full precision if all pairs fit so; else 8, if all fit in 8; else 4. 2. **Pairs.** As
many as fit in these bits. 3. **Tokens.** The square root of the share of pairs that is stored: if
that is a quarter, half    of the visual tokens are computed. On a logarithmic scale pruning does
half of the remaining    reduction. Eviction does the rest, so the budget is met however much of a
prompt is text.

Shares that are not ``auto`` stay as they are. No share falls if the budget rises. The order and the
widths are based on ``benchmarks/quality/stack.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foveate.cache.pairs.pair_sizes import Form
from foveate.compression.byte_budget import Bytes
from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount
from foveate.policies.policy import Policy, with_amount
from foveate.policies.protocols import FullPrecision

WIDTHS = (8, 4)
"""Bits of a number that are tried after full precision.

The first in which all pairs fit is used, or the last.
"""
_WAY_OUT = (
    "Give a share of the full cache's bytes below 100% (budget=10%), or bytes (budget=64MB), or "
    "write the shares out (keep=50%, bits=4)."
)


class Division(NamedTuple):
    """Shares of one budget.

    ``keep`` is the share of visual tokens that is computed. ``bits`` are those of a stored number
    (None: the model's dtype). ``tokens`` are the pairs per KV head of a row that has as many.
    ``allowed`` are bytes over all layers and rows.
    """

    keep: Amount
    bits: int | None
    tokens: int
    allowed: int


def check_one_budget(policy: Policy) -> None:
    """Raise InvalidBudget if a share is ``auto`` and the budget cannot be divided."""
    if not policy.left_open:
        return
    shares, amount = " and ".join(f"{name}=auto" for name in policy.left_open), policy.amount
    if amount.everything:
        raise InvalidBudget(
            f"{policy}: {shares} needs a budget to divide, and this policy keeps everything. "
            f"{_WAY_OUT}"
        )
    if amount.kind not in ("fraction", "bytes"):
        raise InvalidBudget(
            f"{policy}: {shares} needs a budget in bytes to divide, and budget {amount} counts "
            f"pairs. {_WAY_OUT}"
        )
    try:  # the checks of any budget in bytes, with this budget's text
        amount = Amount("bytes", amount.value, f"{amount} (of bytes, for {shares})")
        replace(policy, budget=replace(policy.budget, amount=amount))  # type: ignore[type-var]
    except InvalidBudget as error:
        raise InvalidBudget(f"{policy}: {error}") from None


def divided(policy: Policy, forms: Sequence[Form], lengths: Sequence[int], columns: int) -> Policy:
    """Return the policy with its ``auto`` shares written out for a prompt.

    Args:
        policy: returned unchanged if it has no ``auto`` share.
        forms: form of each compressed layer's pairs.
        lengths: tokens of each row, padding excluded.
        columns: of the batch, padding included.
    """
    if not policy.left_open:
        return policy
    return written_out(policy, divide(policy, forms, lengths, columns))


def divide(policy: Policy, forms: Sequence[Form], lengths: Sequence[int], columns: int) -> Division:
    """Compute the shares of one budget, by the module's rule; arguments as for :func:`divided`."""
    allowed = bytes_of(policy.amount, forms, lengths)
    own_bits: Any = getattr(policy.store, "bits", None)
    widths = (None, *WIDTHS) if "bits" in policy.left_open else (own_bits,)
    longest, tokens, bits = max(lengths), 0, widths[-1]
    for bits in widths:
        shares = Division(Amount.of(1.0), bits, 0, allowed)
        tried = replace(policy, origin=None, **_stages(policy, shares))
        tokens = Bytes(tried, tuple(forms), columns).tokens(list(lengths))
        if tokens >= longest:
            break
    tokens = min(max(tokens, policy.least), longest)  # raised like every budget, or refused later
    stored_share = sum(min(tokens, length) for length in lengths) / sum(lengths)
    tenths = max(1, math.ceil(round(1000 * math.sqrt(stored_share), 6)))  # of a percent
    return Division(Amount.of(f"{tenths / 10}%"), bits, tokens, allowed)


def bytes_of(amount: Amount, forms: Sequence[Form], lengths: Sequence[int]) -> int:
    """Convert an amount to bytes. A share is of the bytes of all pairs, padding excluded."""
    if amount.kind == "bytes":
        return int(amount.value)
    full = sum(form.heads * form.pair for form in forms) * sum(lengths)
    return int(amount.value * full)


def written_out(policy: Policy, shares: Division) -> Policy:
    """Return the policy, and so its spec, with its ``auto`` shares and its budget in bytes."""
    stages = _stages(policy, shares)
    if policy.origin is None:
        return replace(policy, **stages)
    build, arguments, overrides = policy.origin
    others = {slot: stage for slot, stage in stages.items() if slot != "budget"}
    if hasattr(build, "with_stages"):
        build, arguments = build.with_stages(arguments, others)
    overrides = {**overrides, **{slot: new for slot, new in others.items() if slot in overrides}}
    origin = policy.origin._replace(build=build, arguments=arguments, overrides=overrides)
    policy_in_bytes = replace(policy, origin=origin).but(budget=stages["budget"].amount)
    others = {slot: new for slot, new in others.items() if getattr(policy_in_bytes, slot) != new}
    return policy_in_bytes.but(**others) if others else policy_in_bytes


def _stages(policy: Policy, shares: Division) -> dict[str, Any]:
    """Return the stages that change, by slot."""
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
