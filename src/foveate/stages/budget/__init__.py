"""Budgets: how many slots each KV head of each layer keeps."""

from foveate.stages.budget.head_levels import HeadLevels
from foveate.stages.budget.head_table import HeadTable
from foveate.stages.budget.one_ranking import EachHead, OneRanking
from foveate.stages.budget.shares import LayerShares, Uniform

__all__ = ["EachHead", "HeadLevels", "HeadTable", "LayerShares", "OneRanking", "Uniform"]
