"""Sizes of a stand-in, which are noted beside its tables."""

from __future__ import annotations

from collections.abc import Sequence

ANSWER = 3  # tokens of an answer, or of a text that its perplexity is of, at most
PROMPT = 256  # tokens of a text at most, and of the prompt whose time is taken
STEPS = 4  # new tokens whose time is taken
BATCH = 2  # prompts at once
BUDGETS = 3  # of a table with more: the first, the last, and between them
PROFILE = 2  # samples that a profile is measured on at most
NEEDLES = "needle_grid(lengths=120/240,depths=0/50/100)"


def some(budgets: Sequence[str]) -> Sequence[str]:
    """Return the budgets that a stand-in runs, evenly from the first to the last."""
    if len(budgets) <= BUDGETS:
        return budgets
    return [budgets[round(i * (len(budgets) - 1) / (BUDGETS - 1))] for i in range(BUDGETS)]
