"""KIVI: all pairs in a few bits, keys quantised per channel and values per token.

On its own, the method keeps every pair of the prompt. Added to another method
(``snapkv+kivi(bits=4):budget=20%``), it quantises the pairs that the other method keeps.

Differences from the authors' code:

- If a head's keys do not fill the last group, that group is shorter. The release keeps its keys in
  full precision.
- While decoding, keys and values are quantised ``group`` at a time. The release quantises keys
  ``residual`` at a time, and one value per step.
- A group of equal numbers is stored exactly. The release divides by zero.

``of=visual`` quantises visual tokens only. Text stays in the model's dtype, or gets 8 bits
(``text``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

from foveate.cache.pairs import (
    Along,
    CodeLayout,
    ModalityPairs,
    Pairs,
    QuantisedPairs,
    exact_bytes,
)
from foveate.errors import InvalidParameter, MissingModality, UnsupportedPolicy
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Positive
from foveate.policies.protocols import Held, Store
from foveate.stages import Recency, TopK, Uniform

BitsOrAuto = Literal[8, 4, 2, 1, "auto"]
TextBits = Literal[8, 16]


def _number_of_bits(bits: BitsOrAuto) -> int:
    """Return the bits as a number.

    Raises:
        UnsupportedPolicy: bits="auto". A model's prefill divides the budget and replaces "auto" by
            a number; anywhere else it stays "auto".
    """
    if bits == "auto":
        raise UnsupportedPolicy(
            "kivi(bits=auto) takes its bits from the policy's budget, which is divided only while "
            "a model reads a prompt. Give a number here, such as kivi(bits=4)."
        )
    return bits


Codes = TypeVar("Codes", bound="InCodes")


@dataclass(frozen=True, kw_only=True)
class InCodes:
    """Parameters of both stores: ``bits`` per number, and the layout of groups.

    The ``group`` numbers of a group share a minimum and a step. Values form groups within a "token"
    or within a "channel", or are "exact"; keys always within a channel. ``residual`` is the number
    of a head's last pairs that stay in full precision.
    """

    bits: BitsOrAuto = 2
    group: Positive = 32
    residual: Count = 128
    values: Along = "token"

    @property
    def layout(self) -> CodeLayout:
        """Layout of the codes: bits, group size and the axis of values."""
        return CodeLayout(_number_of_bits(self.bits), self.group, self.values)

    def of_latents(self: Codes) -> Codes:
        """Return the same store with exact values, which are rotary keys."""
        return replace(self, values="exact")


@stage("kivi")
class Kivi(InCodes):
    """Store of all pairs in ``bits`` bits, except the last ``residual`` pairs of every KV head.

    Keys are quantised per channel, in groups of ``group`` consecutive tokens of the cache. Values
    are quantised per token, in groups of ``group`` channels; with ``values="channel"``, in the same
    groups as keys. While decoding, a head collects up to ``residual + group`` pairs in full
    precision. Then the oldest ``group`` of them are quantised.

    Source: KIVI (arXiv:2402.02750), section 3.3; values by channel, as CalibQuant does
    (arXiv:2502.14882).
    """

    exact: bool = field(default=False, init=False)  # of Store: quantising changes the pairs

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):  # stored earlier, and now fewer of them are kept
            return pairs
        return QuantisedPairs.of(pairs.opened(), self.layout, self.residual)

    def bytes_of(self, content: Held) -> int:
        """Return the bytes of all tensors of :class:`Body`, and of the pairs in full precision."""
        form, in_full = content.form, content.counts.clamp_max(self.residual)
        coded = content.counts - in_full
        pairs, number_bytes = int(coded.sum()), form.dtype.itemsize
        bits = _number_of_bits(self.bits)
        # per pair: codes, column, and minimum and step of each group of the value's channels
        code_bytes = -(-form.key * bits // 8) + -(-form.value * bits // 8)
        column_bytes = (torch.int16 if content.columns <= 2**15 else torch.int32).itemsize
        value_scales = 2 * -(-form.value // self.group) * number_bytes
        # per group of tokens: minimum and step of each channel, and the group's size
        group_bytes = 2 * form.key * number_bytes + torch.int32.itemsize
        if self.values == "channel":
            group_bytes, value_scales = group_bytes + 2 * form.value * number_bytes, 0
        if self.values == "exact":
            code_bytes = -(-form.key * bits // 8) + form.value * number_bytes
            value_scales = 0
        groups = int((-(-coded // self.group)).sum())
        coded_bytes = pairs * (code_bytes + value_scales + column_bytes) + groups * group_bytes
        counts_bytes = coded.numel() * torch.int64.itemsize
        return coded_bytes + counts_bytes + exact_bytes(in_full, form.pair, content.spare)

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> QuantisedPairs:
        """Rebuild the pairs from tensors that were read from a file.

        ``first`` is the first column that the tensors do not list.
        """
        return QuantisedPairs.restored(tensors, first, self.layout, self.residual)


@stage("kivi_of_visual")
class KiviOfVisual(InCodes):
    """Store of all visual pairs in ``bits`` bits, laid out as in :class:`Kivi`.

    With ``text=16``, text is stored in the model's dtype, even if that has 32 bits. With ``text=8``
    it has 8 bits, except the last ``residual`` text pairs of every head. Generated tokens are text.

    The number of kept pairs that are visual depends on scores, so sizes are unknown beforehand.
    Budgets in bytes, and ``bits="auto"``, raise InvalidBudget.

    Source: KIVI's codes (arXiv:2402.02750), for visual tokens only, as in CalibQuant
    (arXiv:2502.14882). CalibQuant's calibration of the logits is left out.
    """

    values: Along = "channel"
    text: TextBits = 16
    exact: bool = field(default=False, init=False)  # of Store: quantising changes the pairs

    @property
    def _text_layout(self) -> CodeLayout | None:
        """Layout of the text; None if text stays in the model's dtype."""
        along: Along = "exact" if self.values == "exact" else "token"
        return None if self.text == 16 else CodeLayout(8, self.group, along)

    def __call__(self, pairs: Pairs) -> Pairs:
        # Required by the protocol Store. The cache calls of_modality() instead.
        raise MissingModality(
            f"{self!r} stores visual tokens in fewer bits than text, but the visual tokens are not "
            "known. Pass vision= (bool, [batch, tokens]) to compress()."
        )

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """Quantise the pairs of visual tokens, and those of text if ``text`` is 8.

        ``visual`` is True at the columns of visual tokens.
        """
        if isinstance(pairs, ModalityPairs):  # stored earlier: quantise newer visual tokens, too
            return pairs.see(visual)
        layouts = self.layout, self._text_layout
        return ModalityPairs.of(pairs.opened(), visual, *layouts, self.residual)

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> ModalityPairs:
        """Rebuild the pairs from tensors that were read from a file.

        ``first`` is the first column that the tensors do not list.
        """
        layouts = self.layout, self._text_layout
        return ModalityPairs.restored(tensors, first, *layouts, self.residual)


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
        bits: Bits of each stored number, e.g. 4; auto is set by the budget (not with `of=visual`).
        group: Numbers that share a scale.
        residual: Newest pairs (of text, with `of=visual`) that stay in full precision.
        of: Tokens that are quantised: all, or visual tokens only.
        values: Scales of values per token, or per channel like keys; auto is channel for visual.
        text: Bits of text with `of=visual`; 16 keeps the model's dtype.

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
    everything = Uniform(amount=Amount.of(1.0))  # so the score has no effect
    return Policy(score=Recency(), budget=everything, select=TopK(), store=store)
