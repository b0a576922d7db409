"""The same number for every KV head of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.core.amount import Amount, AmountLike
from foveate.core.layer import Scored
from foveate.core.protocols import Scope
from foveate.core.spec import stage
from foveate.stages.budget.exact import fill


@stage("uniform")
@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Every KV head keeps ``amount``. A head that holds less passes the rest on to its layer."""

    amount: AmountLike
    scope: Scope = field(default="layer", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", Amount.of(self.amount))

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [self._layer(one, tokens) for one in scored]

    def _layer(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
        wish = tokens[:, None].expand_as(one.available)
        if bool((one.available >= wish).all()):
            return wish.clone()
        rows = [fill(w, torch.minimum(p, a), a, int(w.sum()))
                for w, p, a in zip(wish, one.protected, one.available, strict=True)]  # fmt: skip
        return torch.stack(rows)
