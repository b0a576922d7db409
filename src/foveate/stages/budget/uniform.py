"""The same number for every KV head of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from foveate.core.amount import Amount, AmountLike
from foveate.core.layer import Scored
from foveate.core.protocols import Scope
from foveate.core.spec import stage
from foveate.stages.budget.exact import heads_of


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
        return [heads_of(one, tokens) for one in scored]
