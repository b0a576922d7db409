"""Budgets: how many slots each KV head of each layer keeps."""

from foveate.stages.budget.uniform import Uniform

__all__ = ["Uniform"]
