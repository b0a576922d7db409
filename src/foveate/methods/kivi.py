"""KIVI: all pairs in a few bits, keys per channel and values per token.

On its own it keeps the whole prompt; added to another method (``snapkv+kivi(bits=4):budget=20%``),
the pairs that this keeps. Differences from the authors' code: the rest of a head's last group of
keys makes a shorter group, where the release keeps it in full precision; while decoding, values
leave the residual a group at a time, as keys do; and equal numbers of a group are exact, where the
release divides by zero.

``of=visual`` stores only visual tokens in few bits, and text in 8 or 16 (``text``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from foveate.cache.pairs import (
    Along,
    CodeLayout,
    ModalityPairs,
    Pairs,
    QuantisedPairs,
    exact,
    exact_bytes,
)
from foveate.cache.pairs.body import Body
from foveate.errors import InvalidParameter, MissingModality, UnsupportedPolicy
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Positive
from foveate.policies.protocols import Held, Store
from foveate.stages import Recency, TopK, Uniform

BitsOrAuto = Literal[8, 4, 2, 1, "auto"]
TextBits = Literal[8, 16]


def _known(bits: BitsOrAuto) -> int:
    """Return the bits, if the budget has set them.

    Raises:
        UnsupportedPolicy: bits="auto" outside a model's prefill, which divides the budget.
    """
    if bits == "auto":
        raise UnsupportedPolicy(
            "kivi(bits=auto) takes its bits from the policy's budget, which is divided only while "
            "a model reads a prompt. Give a number here, such as kivi(bits=4)."
        )
    return bits


@dataclass(frozen=True, kw_only=True)
class InCodes:
    """Store with ``bits`` bits per number; ``group`` numbers share a minimum and a step."""

    bits: BitsOrAuto = 2
    group: Positive = 32
    residual: Count = 128
    values: Along = "token"

    @property
    def layout(self) -> CodeLayout:
        """Layout of the codes: bits, group size and the axis of values."""
        return CodeLayout(_known(self.bits), self.group, self.values)


@stage("kivi")
class Kivi(InCodes):
    """Store of all pairs in ``bits`` bits, except the last ``residual`` pairs of every KV head.

    Keys are quantised per channel, in groups of ``group`` consecutive tokens of the cache; values
    per token, in groups of ``group`` channels. While decoding, the oldest pairs in full precision
    are quantised ``group`` at a time. With ``values="channel"`` values share scales as keys do:
    ``group`` tokens of one channel.

    Source: KIVI (arXiv:2402.02750), section 3.3; values by channel, as CalibQuant does
    (arXiv:2502.14882).
    """

    exact: bool = field(default=False, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):
            return pairs
        return QuantisedPairs.of(pairs.opened(), self.layout, self.residual)

    def bytes_of(self, stored: Held) -> int:
        """Return the bytes of codes, of minimum and step per group, and of the residual pairs."""
        form, rest = stored.form, stored.counts.clamp_max(self.residual)
        coded = stored.counts - rest
        pairs, number = int(coded.sum()), form.dtype.itemsize
        bits = _known(self.bits)
        codes = -(-form.key * bits // 8) + -(-form.value * bits // 8)
        column = (torch.int16 if stored.columns <= 2**15 else torch.int32).itemsize
        of_group = 2 * form.key * number + torch.int32.itemsize
        of_values = 2 * -(-form.value // self.group) * number
        if self.values == "channel":
            of_group, of_values = of_group + 2 * form.value * number, 0
        groups = int((-(-coded // self.group)).sum())
        counts_bytes = coded.numel() * torch.int64.itemsize
        tail = exact_bytes(rest, form.pair, stored.spare)
        return pairs * (codes + of_values + column) + groups * of_group + counts_bytes + tail

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> QuantisedPairs:
        """Return the pairs whose tensors were read from a file."""
        body = Body(**{name: tensors[f"body.{name}"] for name in Body._fields})
        return QuantisedPairs(body, exact(tensors, first), self.layout, self.residual)


@stage("kivi_of_visual")
class KiviOfVisual(InCodes):
    """Store of all visual pairs in ``bits`` bits, laid out as in :class:`Kivi`.

    Text is stored in its own type (16), or in 8 bits except the last ``residual`` text pairs of a
    head. Generated tokens are text.

    The number of visual pairs among the kept ones follows from scores, so a budget in bytes cannot
    be computed.

    Source: KIVI's codes (arXiv:2402.02750), of visual tokens alone as in CalibQuant
    (arXiv:2502.14882), whose calibration of the logits is left out.
    """

    values: Along = "channel"
    text: TextBits = 16
    exact: bool = field(default=False, init=False)

    @property
    def _of_text(self) -> Kivi | None:
        return None if self.text == 16 else Kivi(bits=8, group=self.group, residual=self.residual)

    def __call__(self, pairs: Pairs) -> Pairs:
        raise MissingModality(
            f"{self!r} stores visual tokens in fewer bits than text, but the visual tokens are not "
            "known. Pass vision= (bool, [batch, tokens]) to compress()."
        )

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """Return the pairs, with the columns of visual tokens marked."""
        if isinstance(pairs, ModalityPairs):
            return pairs.see(visual)
        text = self._of_text
        return ModalityPairs.of(
            pairs.opened(), visual, self.layout, text.layout if text else None, self.residual
        )

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> ModalityPairs:
        """Return the pairs whose tensors were read from a file."""
        body = Body(**{name: tensors[f"visual.{name}"] for name in Body._fields})
        text = self._of_text
        text_pairs = text.restored(tensors, first) if text else exact(tensors, first)
        return ModalityPairs(body, text_pairs, self.layout)


@method("liu2024kivi", adds=("store",))
def kivi(
    *,
    bits: BitsOrAuto = 2,
    group: Positive = 32,
    residual: Count = 128,
    of: Literal["all", "visual"] = "all",
    values: Literal["auto", "token", "channel"] = "auto",
    text: TextBits = 16,
) -> Policy:
    """All pairs in few bits except the last ones, or visual pairs only; adds to any method.

    Keys are quantised per channel, values per token (section 3.3).

    Args:
        bits: Bits of each stored number, e.g. 4; auto is set by the budget.
        group: Numbers that share a scale.
        residual: Newest pairs (of text, under `of=visual`) that stay in full precision.
        of: Tokens that are quantised: all, or visual ones alone.
        values: Scales of values by token, or by channel like keys; auto is by channel for visual.
        text: Bits of text beside visual tokens; 16 keeps its type.

    Defaults:
        release; `bits`: the paper's main setting; `values` of visual tokens: CalibQuant, VidKV
    """
    if of == "all" and text != 16:
        raise InvalidParameter(
            f"text={text} sets the bits of text beside visual tokens in fewer bits: add of=visual."
        )
    default: Along = "token" if of == "all" else "channel"
    along = default if values == "auto" else values
    store: Store = Kivi(bits=bits, group=group, residual=residual, values=along)
    if of == "visual":
        store = KiviOfVisual(bits=bits, group=group, residual=residual, values=along, text=text)
    everything = Uniform(amount=Amount.of(1.0))
    return Policy(score=Recency(), budget=everything, select=TopK(), store=store)
