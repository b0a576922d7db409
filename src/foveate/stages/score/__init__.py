"""Scores: importance of each slot; higher is more important."""

from foveate.stages.score.attention_free import (
    KeyDifference,
    KeyNorm,
    RandomScore,
    Recency,
    ValueNorm,
)
from foveate.stages.score.column_sums import ColumnSums
from foveate.stages.score.indexer import IndexerVotes
from foveate.stages.score.kvpress import FromKvpress
from foveate.stages.score.leverage import Leverage
from foveate.stages.score.non_causal import NonCausalAttention
from foveate.stages.score.reconstruction import Reconstruction
from foveate.stages.score.window import WindowAttention
from foveate.stages.score.wrappers import HeadMean, TextPrior

__all__ = [
    "ColumnSums",
    "FromKvpress",
    "HeadMean",
    "IndexerVotes",
    "KeyDifference",
    "KeyNorm",
    "Leverage",
    "NonCausalAttention",
    "RandomScore",
    "Recency",
    "Reconstruction",
    "TextPrior",
    "ValueNorm",
    "WindowAttention",
]
