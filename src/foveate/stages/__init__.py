"""Parts that two or more methods share: scores, budgets, selections, merges, and when.

What one method alone has stands in its file; `score/kvpress.py` is for a user's own presses.
"""

from foveate.stages import budget, merge, score, select, when

__all__ = ["budget", "merge", "score", "select", "when"]
