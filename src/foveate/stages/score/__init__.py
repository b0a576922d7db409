"""Scores: how important each slot is. High is important."""

from foveate.stages.score.after_vision import AfterVision
from foveate.stages.score.column_sums import ColumnSums
from foveate.stages.score.deviation import MeanAttention
from foveate.stages.score.entropy import AttentionEntropy
from foveate.stages.score.expected import ExpectedAttention
from foveate.stages.score.gumbel import GumbelSums
from foveate.stages.score.key_difference import KeyDifference
from foveate.stages.score.kvpress import FromKvpress
from foveate.stages.score.norms import KeyNorm, ValueNorm
from foveate.stages.score.novelty import Novelty
from foveate.stages.score.over_heads import HeadMean
from foveate.stages.score.position import RandomScore, Recency
from foveate.stages.score.proxy import ProxyAttention
from foveate.stages.score.text_guided import TextGuided
from foveate.stages.score.text_prior import TextPrior
from foveate.stages.score.window import WindowAttention

__all__ = [
    "AfterVision",
    "AttentionEntropy",
    "ColumnSums",
    "ExpectedAttention",
    "FromKvpress",
    "GumbelSums",
    "HeadMean",
    "KeyDifference",
    "KeyNorm",
    "MeanAttention",
    "Novelty",
    "ProxyAttention",
    "RandomScore",
    "Recency",
    "TextGuided",
    "TextPrior",
    "ValueNorm",
    "WindowAttention",
]
