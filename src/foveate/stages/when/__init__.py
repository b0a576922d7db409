"""When a layer is compressed."""

from foveate.stages.when.fixed_slot import FixedSlot
from foveate.stages.when.over_budget import OverBudget

__all__ = ["FixedSlot", "OverBudget"]
