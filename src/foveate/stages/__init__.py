"""Parts that two or more methods share: scores, budgets, selections, merges, and when."""

from foveate.stages import budget, merge, score, select, store, when

__all__ = ["budget", "merge", "score", "select", "store", "when"]
