"""Perplexity of a reference text, fed token by token.

PrefixKV (arXiv:2412.03409, eq. 3): the exponential of the mean over all tokens of all samples, on
caches that were compressed after the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foveate.hf.measuring.answer import TeacherForced
from foveate.loading.model import Loaded

LARGEST = 700.0  # nats: exp() of more overflows a float


def reference_tokens(loaded: Loaded, reference: str, answer: Sequence[int]) -> list[int]:
    """Tokenize the reference, after a blank if the model's own answer begins with one."""
    begins = loaded.tokenizer.decode(list(answer[:1]), skip_special_tokens=True)
    blank = " " if begins.startswith(" ") else ""
    tokens: list[int] = loaded.tokenizer(blank + reference, add_special_tokens=False)["input_ids"]
    return tokens


def mean_nll(forced: TeacherForced, tokens: Sequence[int]) -> float:
    """Return the mean negative log-likelihood of the fed tokens (PrefixKV eq. 2, over all i)."""
    targets = forced.logits.new_tensor(tokens, dtype=torch.long)[:, None]
    return float(-forced.logits.log_softmax(-1).gather(1, targets).mean())


def perplexity(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the perplexity of all references of these rows together (PrefixKV eq. 3).

    None if there are no references, or if a likelihood is not finite.
    """
    references = [
        (row.get("reference_nll"), row["reference_tokens"])
        for row in rows
        if row.get("reference_tokens")
    ]
    if not references or not all(nll is not None and math.isfinite(nll) for nll, _ in references):
        return None
    mean = sum(nll * count for nll, count in references) / sum(count for _, count in references)
    return math.exp(mean) if mean < LARGEST else math.inf
