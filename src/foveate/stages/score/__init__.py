"""Scores: how important each slot is. High is important."""

from foveate.stages.score.column_sums import ColumnSums
from foveate.stages.score.norms import KeyNorm, ValueNorm
from foveate.stages.score.over_heads import HeadMean
from foveate.stages.score.position import RandomScore, Recency
from foveate.stages.score.window import WindowAttention

__all__ = [
    "ColumnSums",
    "HeadMean",
    "KeyNorm",
    "RandomScore",
    "Recency",
    "ValueNorm",
    "WindowAttention",
]
