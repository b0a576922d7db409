"""Sizes of a stand-in, which are noted beside its tables."""

from __future__ import annotations

from collections.abc import Sequence

ANSWER = 3  # most tokens of an answer, or of a reference whose perplexity is measured
PROMPT = 256  # most tokens of a text, and tokens of a timed prompt
STEPS = 4  # timed new tokens
BATCH = 2  # prompts of a timed batch
BUDGETS = 3  # most budgets of a table, evenly from the first to the last
PROFILE = 2  # most samples of a profile
NEEDLES = "needle_grid(lengths=120/240,depths=0/50/100)"


def some(budgets: Sequence[str]) -> Sequence[str]:
    """Return the budgets that a stand-in runs, evenly from the first to the last."""
    if len(budgets) <= BUDGETS:
        return budgets
    return [budgets[round(i * (len(budgets) - 1) / (BUDGETS - 1))] for i in range(BUDGETS)]
