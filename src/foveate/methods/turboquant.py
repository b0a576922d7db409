"""TurboQuant: all pairs in 1 to 4 bits per number, without calibration.

Zandieh et al., arXiv:2504.19874. Keys and values are rotated at random, which gives every
coordinate a known distribution, and it becomes the nearest of the few levels that are optimal for
that (Algorithm 1). With ``sketch``, keys spend a bit on Algorithm 2, whose inner products
are unbiased; values never do, because their errors average out in the output.

Alone it keeps the complete prompt; added to another method, what that keeps, as in
``snapkv+turboquant(bits=4):budget=20%``. Departs from the paper's experiments in one way: all
channels have the same bits, where the paper gives some channels one more (2.5 and 3.5 bits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs import (
    Body,
    ModalityPairs,
    Pairs,
    QuantisedPairs,
    exact_bytes,
    short_columns,
)
from foveate.cache.pairs.body import as_bytes
from foveate.errors import InvalidParameter, MissingModality
from foveate.ops.compaction import starts_of
from foveate.ops.turbo_codes import bytes_of, decode, encode
from foveate.ops.turbo_decode import TurboCodes, turbo_decode
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count
from foveate.policies.protocols import Held, Store
from foveate.stages import Recency, TopK, Uniform

Bits = Literal[4, 3, 2, 1]
TextBits = Literal[16, 4, 3, 2, 1]
GROUP = 32  # pairs of a head that leave the residual at once while decoding


class TurboLayout(NamedTuple):
    """Layout of TurboQuant's codes: every pair by itself, with one norm per key and value.

    Where :class:`CodeLayout` has minima, a :class:`Body` has norms: of keys with a ``sketch`` also
    those of their errors.
    """

    bits: int
    sketch: bool = False
    exact_values: bool = False
    group: int = GROUP

    @property
    def decodes_as_codes(self) -> bool:
        """True if values are in codes, too: rotating the query is cheaper than every key."""
        return not self.exact_values

    @property
    def codes_values(self) -> bool:
        """True if values are in codes, too."""
        return not self.exact_values

    def encode(
        self,
        k: Float[Tensor, "f d"],
        v: Float[Tensor, "f e"],
        columns: Int[Tensor, "f"],
        counts: Int[Tensor, "b h"],
    ) -> Body:
        """Encode each key and value by itself."""
        nothing, no_groups = k.new_empty(len(k), 0), counts.new_empty(0, dtype=torch.int32)
        keys = *encode(k, self.bits, self.sketch), nothing
        values = as_bytes(v) if self.exact_values else (*encode(v, self.bits), nothing)
        return Body(*keys, no_groups, *values, short_columns(columns), counts)

    def decode(
        self, body: Body, key: int, value: int
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]:
        """Decode keys and values of these sizes."""
        k = decode(body.k, body.k_least, key, self.bits)
        if self.exact_values:
            return k, body.v.view(body.v_least.dtype)
        return k, decode(body.v, body.v_least, value, self.bits)

    def flat(self, body: Body, longest: int) -> TurboCodes:
        """Return what :attr:`attention` takes, ``longest`` being the most pairs of a head."""
        starts = starts_of(body.counts)
        return TurboCodes(body.k, body.k_least, body.v, body.v_least, starts, longest, self.bits)

    @property
    def attention(self) -> Callable[..., Float[Tensor, "b hq 1 e"]]:
        """Operator of a decoding step."""
        return turbo_decode


@stage("turboquant")
class TurboQuant:
    """All pairs of every KV head but the newest ``residual`` in ``bits`` bits per number.

    While decoding, the oldest pairs in full precision are encoded 32 at a time. ``sketch`` spends
    one bit of keys on unbiased inner products.

    Source: TurboQuant (arXiv:2504.19874), Algorithms 1 and 2.
    """

    bits: Bits = 4
    residual: Count = 0
    sketch: bool = False
    exact_values: bool = False
    exact: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_sketch(self.bits, self.sketch)

    @property
    def layout(self) -> TurboLayout:
        """Layout of the codes."""
        return TurboLayout(self.bits, self.sketch, self.exact_values)

    def of_latents(self) -> TurboQuant:
        """Return the same store with exact values, which are rotary keys."""
        return replace(self, exact_values=True)

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):
            return pairs
        return QuantisedPairs.of(pairs.opened(), self.layout, self.residual)

    def bytes_of(self, stored: Held) -> int:
        """Return the bytes of codes, norms and columns, and of the newest pairs as they came.

        The rotation is one matrix of the process, whatever is stored.
        """
        form, rest = stored.form, stored.counts.clamp_max(self.residual)
        coded = stored.counts - rest
        key = bytes_of(form.key, self.bits)
        if self.sketch:
            key = bytes_of(form.key, self.bits - 1) + bytes_of(form.key, 1)
        value = bytes_of(form.value, self.bits) + form.dtype.itemsize
        if self.exact_values:
            value = form.value * form.dtype.itemsize
        norms = (1 + self.sketch) * form.dtype.itemsize
        column = (torch.int16 if stored.columns <= 2**15 else torch.int32).itemsize
        codes = int(coded.sum()) * (key + value + norms + column)
        counts = coded.numel() * torch.int64.itemsize
        return codes + counts + exact_bytes(rest, form.pair, stored.spare)

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> QuantisedPairs:
        """Return the pairs whose tensors were read from a file."""
        return QuantisedPairs.restored(tensors, first, self.layout, self.residual)


@stage("turboquant_by_modality")
class TurboQuantByModality:
    """Visual pairs in ``visual`` bits per number, text in ``text`` bits; 16 is full precision.

    The newest ``residual`` text pairs of a head stay in full precision. Generated tokens are text.
    No budget in bytes is computed: how many of the kept pairs are visual follows from scores.

    Source: TurboQuant (arXiv:2504.19874), Algorithms 1 and 2.
    """

    visual: Bits = 4
    text: TextBits = 16
    residual: Count = 0
    sketch: bool = False
    exact_values: bool = False
    exact: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for bits in (self.visual, self.text):
            _check_sketch(bits, self.sketch)

    @property
    def _layouts(self) -> tuple[TurboLayout, TurboLayout | None]:
        """Layouts of visual pairs, and of text if it is not in full precision."""
        rest = self.sketch, self.exact_values
        return TurboLayout(self.visual, *rest), None if self.text == 16 else TurboLayout(
            self.text, *rest
        )

    def of_latents(self) -> TurboQuantByModality:
        """Return the same store with exact values, which are rotary keys."""
        return replace(self, exact_values=True)

    def __call__(self, pairs: Pairs) -> Pairs:
        raise MissingModality(
            f"{self!r} needs to know which tokens are visual. "
            "Pass vision= (bool, [batch, tokens]) to compress()."
        )

    def of_modality(self, pairs: Pairs, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """Encode the pairs, given the columns of visual tokens as a mask."""
        if isinstance(pairs, ModalityPairs):
            return pairs.see(visual)
        return ModalityPairs.of(pairs.opened(), visual, *self._layouts, self.residual)

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> ModalityPairs:
        """Return the pairs whose tensors were read from a file."""
        return ModalityPairs.restored(tensors, first, *self._layouts, self.residual)


def _check_sketch(bits: int, sketch: bool) -> None:
    if sketch and bits == 1:
        raise InvalidParameter(
            "sketch=true spends one bit of keys on their errors, and bits=1 leaves none for the "
            "keys: take 2 bits or more, or sketch=false."
        )


@method("zandieh2025turboquant", adds=("store",))
def turboquant(
    *,
    bits: Bits = 4,
    residual: Count = 0,
    sketch: bool = False,
    visual: Bits | None = None,
    text: TextBits = 16,
) -> Policy:
    """Pairs in few bits per number after a random rotation, uncalibrated; adds to any method.

    Args:
        bits: Bits of each stored number, unless `visual` is given.
        residual: The newest pairs, which stay in full precision.
        sketch: Whether keys spend one of their bits on unbiased inner products (Algorithm 2).
        visual: Bits of visual tokens, if text has others.
        text: Bits of text beside visual tokens; 16 leaves them in full precision.

    Defaults:
        4 bits: the largest of the paper's codebooks; no residual, as in the paper; sketch: measured
    """
    store: Store = TurboQuant(bits=bits, residual=residual, sketch=sketch)
    if visual is not None:
        store = TurboQuantByModality(visual=visual, text=text, residual=residual, sketch=sketch)
    elif text != 16:
        raise InvalidParameter(
            f"text={text} are the bits of text beside visual tokens: give those of visual tokens, "
            "too, such as visual=3, or bits= for all."
        )
    everything = Uniform(amount=Amount.of(1.0))
    return Policy(score=Recency(), budget=everything, select=TopK(), store=store)
