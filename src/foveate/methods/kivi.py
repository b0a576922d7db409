"""KIVI: everything is kept, in a few bits: keys per channel, values per token.

On its own the whole prompt; added to another method (``snapkv+kivi(bits=4):budget=20%``), what
that keeps. Departs from the authors' code in three ways: what is left over of a head's last group
of keys makes a shorter group, where the release keeps it in full precision; while decoding, values
leave the residual a group at a time, as keys do; and equal numbers of a group are exact, where the
release divides by zero.

``of=visual`` holds visual tokens alone in few bits, beside text in 8 or 16 (``text``).
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
    """Raises UnsupportedPolicy where nothing has divided the budget that they are a part of."""
    if bits == "auto":
        raise UnsupportedPolicy(
            "kivi(bits=auto) leaves its bits to the policy's budget, which is divided where a "
            "model reads a prompt, and was not here. Write them out, such as kivi(bits=4)."
        )
    return bits


@dataclass(frozen=True, kw_only=True)
class InCodes:
    """Pairs in codes of ``bits`` bits: a ``group`` of numbers shares a least value and a step."""

    bits: BitsOrAuto = 2
    group: Positive = 32
    residual: Count = 128
    values: Along = "token"

    @property
    def layout(self) -> CodeLayout:
        """How numbers become codes."""
        return CodeLayout(_known(self.bits), self.group, self.values)


@stage("kivi")
class Kivi(InCodes):
    """Of every KV head, all pairs but the last ``residual`` in ``bits`` bits: keys per channel, in
    groups of ``group`` tokens that follow each other in the cache, values per token, in groups of
    ``group`` channels. While decoding, the oldest pairs in full precision are quantised a ``group``
    at a time. ``values`` by "channel" share scales as keys do: of one channel, ``group`` tokens.

    Source: KIVI (arXiv:2402.02750), section 3.3; values by channel, as CalibQuant does
    (arXiv:2502.14882).
    """

    exact: bool = field(default=False, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):
            return pairs
        return QuantisedPairs.of(pairs.opened(), self.layout, self.residual)

    def bytes_of(self, held: Held) -> int:
        """Codes, a least value and a step for each group, and the last pairs as they came."""
        form, rest = held.form, held.counts.clamp_max(self.residual)
        coded = held.counts - rest
        pairs, number = int(coded.sum()), form.dtype.itemsize
        bits = _known(self.bits)
        codes = -(-form.key * bits // 8) + -(-form.value * bits // 8)
        column = (torch.int16 if held.columns <= 2**15 else torch.int32).itemsize
        of_group = 2 * form.key * number + torch.int32.itemsize
        of_values = 2 * -(-form.value // self.group) * number
        if self.values == "channel":
            of_group, of_values = of_group + 2 * form.value * number, 0
        groups = int((-(-coded // self.group)).sum())
        each = coded.numel() * torch.int64.itemsize
        tail = exact_bytes(rest, form.pair, held.spare)
        return pairs * (codes + of_values + column) + groups * of_group + each + tail

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> QuantisedPairs:
        """The pairs whose tensors were read from a file."""
        body = Body(**{name: tensors[f"body.{name}"] for name in Body._fields})
        return QuantisedPairs(body, exact(tensors, first), self.layout, self.residual)


@stage("kivi_of_visual")
class KiviOfVisual(InCodes):
    """All visual pairs in ``bits`` bits, laid out as :class:`Kivi` does; text in 16, which is as
    it came, or in 8, all but the last ``residual`` text pairs of a head. What is generated is text.

    How many of the kept pairs are visual follows from scores, so no budget in bytes is worked out.

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
            f"{self!r} holds visual tokens in fewer bits than text, and nothing tells which tokens "
            "are visual. Pass vision= (bool, [batch, tokens]) to compress()."
        )

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """The pairs, given which columns are of visual tokens."""
        if isinstance(pairs, ModalityPairs):
            return pairs.see(visual)
        text = self._of_text
        return ModalityPairs.of(
            pairs.opened(), visual, self.layout, text.layout if text else None, self.residual
        )

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> ModalityPairs:
        """The pairs whose tensors were read from a file."""
        body = Body(**{name: tensors[f"visual.{name}"] for name in Body._fields})
        text = self._of_text
        others = text.restored(tensors, first) if text else exact(tensors, first)
        return ModalityPairs(body, others, self.layout)


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
    """Holds all but the last pairs in few bits, or visual ones alone; adds to any method.

    Args:
        bits: Bits of each number that is held; auto is what one budget leaves for them.
        group: Numbers that share a scale.
        residual: The newest pairs (of text, under `of=visual`), which are held as they are.
        of: Whose numbers, all tokens' or visual ones' alone.
        values: Scales of values by token, or by channel as keys' are; auto is by channel of visual.
        text: Bits of text beside visual tokens; 16 is as it came.

    Defaults:
        release; 2 bits: the paper's main setting; `values` of visual tokens: CalibQuant, VidKV
    """
    if of == "all" and text != 16:
        raise InvalidParameter(
            f"text={text} says how text is held beside visual tokens of fewer bits: add of=visual."
        )
    usual: Along = "token" if of == "all" else "channel"
    along = usual if values == "auto" else values
    store: Store = Kivi(bits=bits, group=group, residual=residual, values=along)
    if of == "visual":
        store = KiviOfVisual(bits=bits, group=group, residual=residual, values=along, text=text)
    everything = Uniform(amount=Amount.of(1.0))
    return Policy(score=Recency(), budget=everything, select=TopK(), store=store)
