"""When a layer is compressed."""

from foveate.stages.when.over_budget import OverBudget

__all__ = ["OverBudget"]
