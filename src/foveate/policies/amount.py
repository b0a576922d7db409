"""Amounts of a budget: a share of the prompt, tokens, bytes, or a share of importance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.errors import InvalidBudget
from foveate.policies.parameters import MOST, short_repr

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
LIMITS = {"floor": "5%", "cap": "100%"}
AUTO = "auto"
"""Value of a stage's own share if one budget is divided among several."""
Kind = Literal["fraction", "tokens", "bytes", "auto"]
LEAST, LONGEST = Fraction(1, 10**9), 30  # limits: share of a prompt, letters of an amount
MOST_BYTES = 2**50
_AMOUNT = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*(%|[kKmMgG]?[iI]?[bB])?", re.ASCII
)
WAY_OUT = (
    "Give a fraction in (0, 1] (0.2 or '20%'), a number of tokens (256) or of bytes ('64MB'), or a "
    "share of the scores' importance ('auto(0.98)')."
)
_AUTO = re.compile(r"auto\((.{1,80})\)", re.ASCII)
_AUTO_WAY_OUT = "Write auto(0.98), or with limits auto(0.98, floor=5%, cap=50%)."


@dataclass(frozen=True)
class Amount:
    """Tokens kept per KV head and layer, on average over the scope of the budget.

    ``kind`` is ``"fraction"`` (of the tokens seen, exact rational arithmetic), ``"tokens"``,
    ``"bytes"`` (of all compressed layers and all rows of the batch together), or ``"auto"``: as
    many as have the share ``value`` of the scores' importance, from ``floor`` to ``cap``, which are
    fractions or tokens (see :mod:`foveate.compression.pipeline`).
    """

    kind: Kind
    value: Fraction
    text: str
    floor: Amount | None = None
    cap: Amount | None = None

    @classmethod
    def of(cls, raw: object) -> Amount:
        """Parse 0.2, "20%", 256, "64MB" or "auto(0.98, floor=5%, cap=50%)".

        Raises:
            InvalidBudget: ``raw`` is no amount, zero, negative, NaN, a fraction below 1e-9 or over
                1, 2^31 tokens or more, or over 2^50 bytes; the same for values in auto(), or a
                floor above the cap.
        """
        if isinstance(raw, Amount):
            return raw
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise InvalidBudget(f"budget {short_repr(raw)} is no amount. {WAY_OUT}")
        if isinstance(raw, float) and not math.isfinite(raw):
            raise InvalidBudget(f"budget {raw!r} is not a finite number. {WAY_OUT}")
        if isinstance(raw, str) and (match := _AUTO.fullmatch(raw.strip())):
            return _auto(raw, match[1])
        kind, value = _read(raw)
        if problem := _problem(kind, value):
            raise InvalidBudget(f"budget {short_repr(raw)} {problem} {WAY_OUT}")
        return cls(kind, value, _print(kind, value))

    @property
    def everything(self) -> bool:
        """True for 100 %."""
        return self.kind == "fraction" and self.value == 1

    @property
    def or_share(self) -> str:
        """Hint for errors if a number of tokens may be meant as a percentage; may be empty."""
        if self.kind != "tokens" or self.value > 100:
            return ""
        return f" For {self} % of the prompt write '{self}%'."

    def tokens(self, lengths: Int[Tensor, "b"], pair_bytes: int) -> Int[Tensor, "b"]:
        """Return the tokens kept per KV head and layer, one number per row.

        A fraction is rounded down, but at least one token is kept. An auto amount returns its
        floor.

        Args:
            lengths: tokens seen by each row, padding excluded.
            pair_bytes: bytes of one token's keys and values over all heads of all compressed layers
                (only used by a budget in bytes).

        Raises:
            InvalidBudget: the bytes do not hold one token per row.
        """
        if self.floor is not None:
            return self.floor.tokens(lengths, pair_bytes)
        if self.kind == "tokens":
            return torch.full_like(lengths, int(self.value))
        if self.kind == "bytes":
            kept_tokens = int(self.value) // (pair_bytes * lengths.numel())
            if kept_tokens < 1:
                least = pair_bytes * lengths.numel()
                raise InvalidBudget(
                    f"budget {self.text} holds no token: one token of this batch takes {least} "
                    f"bytes over all layers. Give at least that."
                )
            return torch.full_like(lengths, kept_tokens)
        # integers: 0.29 of 100 is 29, but 0.29 * 100 < 29 in floating point
        kept = [
            max(1, length * self.value.numerator // self.value.denominator)
            for length in lengths.tolist()
        ]
        return torch.tensor(kept, dtype=lengths.dtype, device=lengths.device)

    def __str__(self) -> str:
        return self.text


def _auto(raw: str, inside: str) -> Amount:
    """Parse the share and its limits, such as "0.98, floor=5%, cap=50%"."""
    first, *others = (part.strip() for part in inside.split(","))
    limits = dict(part.replace(" ", "").partition("=")[::2] for part in others)
    unknown = [name for name in limits if name not in ("floor", "cap")]
    if unknown or len(limits) != len(others):
        raise InvalidBudget(
            f"budget {raw!r} has the invalid contents {short_repr(inside)}. {_AUTO_WAY_OUT}"
        )
    try:
        share = Fraction(first.removesuffix("%")) / (100 if first.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise InvalidBudget(
            f"budget {raw!r} asks for {first} of the scores' importance: give a share above 0, up "
            f"to 1 (or 100%). {_AUTO_WAY_OUT}"
        )
    try:
        floor, cap = (Amount.of(limits.get(name, text)) for name, text in LIMITS.items())
    except InvalidBudget as error:
        raise InvalidBudget(f"budget {raw!r}: {error} {_AUTO_WAY_OUT}") from error
    if "bytes" in (floor.kind, cap.kind):
        raise InvalidBudget(f"budget {raw!r}: its limits are shares or tokens. {_AUTO_WAY_OUT}")
    if floor.kind == cap.kind and floor.value > cap.value:
        raise InvalidBudget(f"budget {raw!r}: the floor is above the cap. {_AUTO_WAY_OUT}")
    parsed = [("floor", floor), ("cap", cap)]
    options = [f"{name}={limit}" for name, limit in parsed if str(limit) != LIMITS[name]]
    text = ",".join((_print("fraction", share), *options))
    return Amount("auto", share, f"auto({text})", floor, cap)


def _read(raw: int | float | str) -> tuple[Kind, Fraction]:
    if isinstance(raw, int):
        return "tokens", Fraction(raw)
    if isinstance(raw, float):
        return "fraction", Fraction(str(raw))  # 0.1 as written, not its binary approximation
    text = raw.strip()
    number = _AMOUNT.fullmatch(text) if len(text) <= LONGEST else None
    if number is None:
        raise InvalidBudget(f"budget {short_repr(raw)} is no amount. {WAY_OUT}")
    value, unit = Fraction(number[1]), (number[2] or "").upper()
    if unit == "%":
        return "fraction", value / 100
    if unit in _BYTES:
        return "bytes", Fraction(math.floor(value * _BYTES[unit]))
    if unit:
        raise InvalidBudget(f"budget {raw!r} has the unknown unit {number[2]!r}. {WAY_OUT}")
    return ("tokens" if re.fullmatch(r"[+-]?[0-9]+", number[1]) else "fraction"), value


def _problem(kind: str, value: Fraction) -> str:
    """Return the error text of an amount out of its range, else an empty text."""
    if value <= 0:
        return "keeps nothing."
    if kind == "fraction" and value > 1:
        write = f" For {int(value)} tokens write the integer {int(value)}."
        return f"is more than the whole prompt.{write if 2 <= value <= MOST else ''}"
    if kind == "fraction" and value < LEAST:
        return "is less than 0.0000001 % of a prompt."
    limit = {"tokens": MOST, "bytes": MOST_BYTES}.get(kind, 1)
    return f"is more than {limit} {kind}, the limit." if value > limit else ""


def _print(kind: str, value: Fraction) -> str:
    """Return the shortest text that parses to the same amount."""
    if kind == "tokens":
        return str(int(value))
    if kind == "bytes":
        for unit in ("GB", "MB", "KB"):
            if value % _BYTES[unit] == 0:
                return f"{value // _BYTES[unit]}{unit}"
        return f"{math.floor(value)}B"
    with localcontext(prec=50):
        percent = Decimal(value.numerator) * 100 / Decimal(value.denominator)
    return f"{percent.normalize():f}%"


AmountLike = Amount | float | int | str
"""Types that a budget may be written as."""
