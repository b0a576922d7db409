"""What selections have in common that keep the last tokens, or the first ones as well, beside what
they choose.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from foveate.core.parameters import Count, Recent
from foveate.core.slots import Slots
from foveate.stages.recent import is_recent


@dataclass(frozen=True, kw_only=True)
class KeepsRecent:
    """Protects the last ``recent`` tokens: a number of them, or a share of the budget."""

    recent: Recent = 0.5

    @property
    def protects(self) -> int:
        return self.recent if isinstance(self.recent, int) else 0

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        return is_recent(slots, self.recent)


@dataclass(frozen=True, kw_only=True)
class KeepsEnds(KeepsRecent):
    """Protects the first ``sinks`` tokens, too."""

    recent: Recent = 0
    sinks: Count = 0

    @property
    def protects(self) -> int:
        return self.sinks + super().protects

    def protect(self, slots: Slots) -> Bool[Tensor, "b h n"]:
        last = super().protect(slots)
        if not self.sinks:
            return last
        return last | slots.where(lambda pos: (pos >= 0) & (pos < self.sinks))
