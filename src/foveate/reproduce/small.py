"""How small a stand-in is: said beside its tables wherever it applies."""

from __future__ import annotations

ANSWER = 3  # tokens of an answer, or of a text that its perplexity is of, at most
PROMPT = 256  # tokens of a text at most, and of the prompt whose time is taken
STEPS = 4  # new tokens whose time is taken
BATCH = 2  # prompts at once
PROFILE = 2  # samples that a profile is measured on at most
NEEDLES = "needle_grid(lengths=120/240,depths=0/50/100)"
