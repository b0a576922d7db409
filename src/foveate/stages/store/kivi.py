"""Kept pairs in 8, 4 or 2 bits, the newest in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from foveate.core.parameters import Count, Positive
from foveate.core.protocols import Held
from foveate.core.spec import stage
from foveate.core.storage import Pairs, exact, exact_bytes
from foveate.stages.store.body import Body
from foveate.stages.store.quantised import QuantisedPairs

Bits = Literal[8, 4, 2]


@stage("kivi")
@dataclass(frozen=True, kw_only=True)
class Kivi:
    """Of every KV head, all pairs but the last ``residual`` in ``bits`` bits: keys per channel, in
    groups of ``group`` tokens that follow each other in the cache, values per token, in groups of
    ``group`` channels. While decoding, the oldest pairs in full precision are quantised a ``group``
    at a time.

    Source: KIVI (arXiv:2402.02750), section 3.3.
    """

    bits: Bits = 2
    group: Positive = 32
    residual: Count = 128
    exact: bool = field(default=False, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):
            return pairs
        return QuantisedPairs.of(pairs.opened(), self.bits, self.group, self.residual)

    def bytes_of(self, held: Held) -> int:
        """Codes, a least value and a step for each group, and the last pairs as they came."""
        form, rest = held.form, held.counts.clamp_max(self.residual)
        coded = held.counts - rest
        pairs, number = int(coded.sum()), form.dtype.itemsize
        codes = -(-form.key * self.bits // 8) + -(-form.value * self.bits // 8)
        of_values = 2 * -(-form.value // self.group) * number
        column = (torch.int16 if held.columns <= 2**15 else torch.int32).itemsize
        of_group = 2 * form.key * number + torch.int32.itemsize
        groups = int((-(-coded // self.group)).sum())
        each = coded.numel() * torch.int64.itemsize
        late = exact_bytes(rest, form.pair, held.spare)
        return pairs * (codes + of_values + column) + groups * of_group + each + late

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> QuantisedPairs:
        """The pairs whose tensors were read from a file."""
        body = Body(**{name: tensors[f"body.{name}"] for name in Body._fields})
        return QuantisedPairs(body, exact(tensors, first), self.bits, self.group, self.residual)
