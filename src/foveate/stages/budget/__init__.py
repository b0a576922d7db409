"""Budgets: the number of slots that each KV head of each layer keeps."""

from foveate.stages.budget.head_table import HeadTable
from foveate.stages.budget.one_ranking import AboveThreshold, EachHead, OneRanking
from foveate.stages.budget.shares import LayerShares, Uniform

__all__ = ["AboveThreshold", "EachHead", "HeadTable", "LayerShares", "OneRanking", "Uniform"]
