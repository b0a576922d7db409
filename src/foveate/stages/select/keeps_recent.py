"""What selections have in common that keep the last tokens beside what they choose."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.layer import Layer
from foveate.stages.recent import Recent, check_recent, is_recent


@dataclass(frozen=True, kw_only=True)
class KeepsRecent:
    """Protects the last ``recent`` tokens: a number of them, or a share of the budget."""

    recent: Recent = 0.5

    def __post_init__(self) -> None:
        check_recent("recent", self.recent)

    @property
    def protects(self) -> int:
        return self.recent if isinstance(self.recent, int) else 0

    def protect(self, layer: Layer, tokens: Int[Tensor, "b"]) -> Bool[Tensor, "b h n"]:
        return is_recent(layer, self.recent, tokens)
