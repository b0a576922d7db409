"""Scores: how important each slot is. High is important."""

from foveate.stages.score.column_sums import ColumnSums
from foveate.stages.score.kvpress import FromKvpress
from foveate.stages.score.norms import KeyNorm, ValueNorm
from foveate.stages.score.over_heads import HeadMean
from foveate.stages.score.position import RandomScore, Recency
from foveate.stages.score.text_prior import TextPrior
from foveate.stages.score.window import WindowAttention

__all__ = [
    "ColumnSums",
    "FromKvpress",
    "HeadMean",
    "KeyNorm",
    "RandomScore",
    "Recency",
    "TextPrior",
    "ValueNorm",
    "WindowAttention",
]
