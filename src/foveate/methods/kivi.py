"""KIVI: everything is kept, in a few bits: keys per channel, values per token.

On its own the whole prompt; added to another method (``snapkv+kivi(bits=4):budget=20%``), what
that keeps. Departs from the authors' code in three ways: what is left over of a head's last group
of keys makes a shorter group, where the release keeps it in full precision; while decoding, values
leave the residual a group at a time, as keys do; and equal numbers of a group are exact, where the
release divides by zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Positive
from foveate.core.policy import Policy
from foveate.core.protocols import Held
from foveate.core.spec import stage
from foveate.core.storage import Pairs, QuantisedPairs, exact, exact_bytes
from foveate.core.storage.body import Body
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK

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


@method(
    Paper(
        title="KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
        authors=(
            "Liu, Zirui",
            "Yuan, Jiayi",
            "Jin, Hongye",
            "Zhong, Shaochen",
            "Xu, Zhaozhuo",
            "Braverman, Vladimir",
            "Chen, Beidi",
            "Hu, Xia",
        ),
        year=2024,
        venue="International Conference on Machine Learning",
        key="liu2024kivi",
        arxiv="2402.02750",
        code="https://github.com/jy-yuan/KIVI",
    ),
    adds=("store",),
)
def kivi(*, bits: Bits = 2, group: Positive = 32, residual: Count = 128) -> Policy:
    """Holds all but the last pairs in 2, 4 or 8 bits; adds to any method.

    Args:
        bits: Bits of each number that is held.
        group: Numbers that share a scale.
        residual: The newest pairs, which are held as they are.

    Defaults:
        release; 2 bits: the paper's main setting
    """
    return Policy(
        score=Recency(),
        budget=Uniform(amount=Amount.of(1.0)),
        select=TopK(),
        store=Kivi(bits=bits, group=group, residual=residual),
    )
